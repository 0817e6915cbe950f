// The caller of this page. An open server needs no sign-in.

import { getJson, send, session } from "./request.js";

let current = null;

function setCaller(caller) {
  current = caller;
  session.dispatchEvent(new Event("changed"));
  return caller;
}

/** Load the caller: `{required, owner, admin, expires_at}`; without an owner, a sign-in is needed. */
export const loadCaller = async () => setCaller(await getJson("v1/session"));
export const me = () => current;

/** Exchange a key for a session. The browser keeps its cookie; this page does not keep the key. */
export const signIn = async (key) => setCaller(await send("POST", "v1/session", { body: { key } }));

export async function signOut() {
  await send("DELETE", "v1/session");
  forget();
}

const forget = () => setCaller({ required: true, owner: null, admin: false, expires_at: null });
session.addEventListener("ended", forget);
