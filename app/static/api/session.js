// Who is calling: nobody needs to sign in to an open server.

import { getJson, send, session } from "./request.js";

let current = null;

function setCaller(caller) {
  current = caller;
  session.dispatchEvent(new Event("changed"));
  return caller;
}

/** The caller: `{required, owner, admin, expires_at}`; without an owner they must sign in. */
export const loadCaller = async () => setCaller(await getJson("v1/session"));
export const me = () => current;

/** A key becomes a session: the browser keeps its cookie, and this page never keeps the key. */
export const signIn = async (key) => setCaller(await send("POST", "v1/session", { body: { key } }));

export async function signOut() {
  await send("DELETE", "v1/session");
  forget();
}

const forget = () => setCaller({ required: true, owner: null, admin: false, expires_at: null });
session.addEventListener("ended", forget);
