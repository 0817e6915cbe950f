"""Data: a file is dropped on the page, and its owner sees its contents before anything runs."""

import re

import httpx
import numpy as np
from playwright.sync_api import expect

from tests.support.api import planted, upload
from tests.support.browser import Visitor, spectra


def test_a_dropped_file_is_uploaded_and_shown(visitor: Visitor, lab: httpx.Client) -> None:
    tensor = spectra(seed=1)
    page = visitor.go("/")
    visitor.heading("Data")
    visitor.drop(tensor, "mixtures.npy")
    visitor.heading("mixtures")
    facts = page.get_by_label("Facts")
    expect(facts).to_contain_text("8 × 30 × 20")
    expect(facts).to_contain_text("3 entries are NaN")
    expect(facts).to_contain_text(f"{int((tensor < 0).sum())} entries are negative")
    stored = lab.get("/v1/tensors", params={"name": "mixtures"}).json()["items"][0]
    assert stored["shape"] == [8, 30, 20]
    histogram = visitor.drawn("[aria-label^='Histogram']")[0]
    assert sum(histogram["y"]) == np.isfinite(tensor).sum()


def test_what_the_server_has_is_not_sent_again(visitor: Visitor, lab: httpx.Client) -> None:
    tensor = planted(6, 5, 4, seed=21)
    record = upload(lab, tensor, "known")
    page = visitor.go("/")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    visitor.drop(tensor, "another name.npy")
    expect(page.get_by_text("You have this already")).to_be_visible()
    expect(page.locator("main").get_by_role("link", name="known").first).to_have_attribute(
        "href", f"#/tensors/{record['id']}"
    )
    assert "POST" not in sent


def test_a_file_that_is_no_tensor_is_refused_before_it_is_sent(visitor: Visitor) -> None:
    page = visitor.go("/")
    page.set_input_files("input[type=file]", {"name": "notes.csv", "mimeType": "text/csv", "buffer": b"a,b\n1,2\n"})
    expect(page.get_by_role("alert")).to_contain_text("notes.csv is not a .npy file")
    expect(page.get_by_role("alert")).to_contain_text("numpy.save")


def test_a_sample_becomes_a_tensor_with_one_click(visitor: Visitor, lab: httpx.Client) -> None:
    sample = lab.get("/v1/samples").json()["items"][0]
    page = visitor.go("/")
    page.get_by_role("button", name=sample["title"]).click()
    expect(page.get_by_label("Facts")).to_contain_text(" × ".join(map(str, sample["shape"])))


def test_any_slice_is_shown_and_a_slider_moves_it(visitor: Visitor, lab: httpx.Client) -> None:
    tensor = spectra(seed=2)
    record = upload(lab, tensor, "slices")
    page = visitor.go(f"/tensors/{record['id']}")
    picture = "[data-picture=Data]"

    def shows(expected: np.ndarray) -> None:
        page.wait_for_function(
            """([picture, rows, entry]) => {
                const z = document.querySelector(picture)?.data?.[0]?.z;
                return z?.length === rows && z[1][1] === entry;
            }""",
            arg=[picture, len(expected), float(expected[1, 1])],
        )
        shown = np.array(visitor.drawn(picture)[0]["z"], dtype=float)
        np.testing.assert_array_equal(shown, expected)

    shows(tensor[3])  # the middle one of eight
    slider = page.get_by_role("slider", name="mode 1")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    shows(tensor[2])  # the one with missing entries: they are gaps
    page.get_by_label("Mode downwards").select_option("1")
    shows(tensor[:, 14, :])
    page.get_by_label("Mode across").select_option("1")
    shows(tensor[:, 14, :].T)


def test_axes_are_pasted_and_label_what_is_shown(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, spectra(seed=3), "labels")
    page = visitor.go(f"/tensors/{record['id']}")
    page.get_by_text("Axes: none yet").click()
    first, second, third = (page.get_by_role("group", name=f"Mode {mode},") for mode in (1, 2, 3))
    first.get_by_label("Name").fill("sample")
    first.get_by_label("Values").fill("a\nb\nc\nd\ne\nf\ng")
    expect(first).to_contain_text("7 of 8, texts")
    second.get_by_label("Name").fill("emission")
    second.get_by_label("Unit").fill("nm")
    second.get_by_label("Values").fill("300:4:416")
    third.get_by_label("Values").fill("\t".join(str(0.5 * place) for place in range(20)))
    page.get_by_role("button", name="Save the axes").click()
    visitor.expected = ("status of 422",)
    expect(page.get_by_role("alert")).to_contain_text("axes[1].values")
    first.get_by_label("Values").fill("a\nb\nc\nd\ne\nf\ng\nh")
    page.get_by_role("button", name="Save the axes").click()
    expect(page.get_by_label("Facts")).to_contain_text("sample × emission × mode 3")
    axes = lab.get(f"/v1/tensors/{record['id']}/axes").json()
    assert axes[0]["values"] == list("abcdefgh")
    assert axes[1] == {"name": "emission", "unit": "nm", "values": list(range(300, 420, 4))}
    assert axes[2]["values"] == [0.5 * place for place in range(20)]
    assert visitor.drawn("[data-picture=Data]")[0]["y"] == axes[1]["values"]


def test_zeros_that_look_missing_are_shown_and_left_out_by_one_click(visitor: Visitor, lab: httpx.Client) -> None:
    tensor = np.abs(spectra(seed=4)) + 0.5
    tensor[:, 8:16, 4:9] = 0
    tensor[2, 5:8, 3] = 0.5
    page = visitor.go(f"/tensors/{upload(lab, tensor, 'cut out')['id']}")
    note = page.get_by_label("Zeros that look like missing readings")
    expect(note).to_contain_text("320 entries are zero", timeout=20_000)
    drawn = np.array(visitor.drawn("[aria-label^='Zeros, over']")[0]["z"])
    assert (drawn == (tensor == 0).all(axis=0)).all()
    note.get_by_role("link", name="Run with these as missing").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile("#/jobs/"))
    [job] = lab.get("/v1/jobs", params={"limit": 1}).json()["items"]
    assert job["settings"]["zeros"] == "missing"


def test_tensors_are_found_renamed_and_deleted_after_a_question(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(5, 4, seed=31), "needle one")
    page = visitor.go("/tensors")
    page.get_by_role("searchbox", name="Name").fill("needle")
    row = page.get_by_role("row").filter(has_text="needle one")
    expect(page.locator("tbody tr")).to_have_count(1)
    row.get_by_role("button", name="Rename").click()
    page.get_by_role("dialog").get_by_label("Name").fill("needle two")
    page.get_by_role("button", name="Rename", exact=True).click()
    renamed = page.get_by_role("row").filter(has_text="needle two")
    renamed.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep as it is").click()
    assert lab.get(f"/v1/tensors/{record['id']}").json()["name"] == "needle two"
    renamed.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No tensors.")).to_be_visible()
    assert lab.get(f"/v1/tensors/{record['id']}").status_code == 404
