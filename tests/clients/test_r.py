"""The client for R, run on a server."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from ncp_client import Client, Tensor
from tests.support.api import Api
from tests.support.jobs import same_bits
from tests.support.languages import r
from tests.support.machine.proxy import cutting_proxy
from tests.support.stack import ROOT

# Rank three in any order, without noise.
PLANTED = """
planted <- function(shape) {
  set.seed(1)
  Reduce(`+`, lapply(1:3, function(k) Reduce(outer, lapply(shape, runif))))
}
"""


@pytest.fixture(autouse=True)
def server_of_the_variables(api_with_worker: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)


@pytest.mark.parametrize("shape", [(12, 10), (12, 10, 8), (7, 6, 5, 4)])
def test_one_line_decomposes_an_array_of_any_order(shape: tuple[int, ...], lab: Client, tmp_path: Path) -> None:
    script = f"""
    x <- planted(c({", ".join(map(str, shape))}))
    r <- ncp(x, rank = 4, beta = 0)
    ncp_write_npy(x, "x.npy")
    for (mode in seq_along(r$factors)) ncp_write_npy(r$factors[[mode]], sprintf("A%d.npy", mode))
    cat(r$job$id, r$tensor$id, r$job$result$relative_error)
    """
    job_id, tensor_id, error = r(PLANTED + script, tmp_path).split()
    back = [np.ascontiguousarray(np.load(tmp_path / f"A{mode}.npy")) for mode in range(1, len(shape) + 1)]
    assert same_bits(back, lab.job(job_id).factors())
    lab.tensor(tensor_id).download(tmp_path / "stored.npy")
    assert (tmp_path / "stored.npy").read_bytes() == (tmp_path / "x.npy").read_bytes()
    assert np.load(tmp_path / "stored.npy").shape == shape
    assert float(error) < 0.05
    assert lab.job(job_id).record["settings"]["preset"] == "recommended"


def test_integers_and_logicals_are_written_as_they_are(tmp_path: Path) -> None:
    script = "x <- array(1:24, c(2, 3, 4)); ncp_write_npy(x, 'i.npy'); ncp_write_npy(x > 3, 'b.npy')"
    r(script, tmp_path)
    expected = np.arange(1, 25, dtype=np.int32).reshape((2, 3, 4), order="F")
    assert np.array_equal(np.load(tmp_path / "i.npy"), expected)
    assert np.array_equal(np.load(tmp_path / "b.npy"), expected > 3)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32, np.int16, ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes_is_read(kind: str, order: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asarray(np.arange(24).reshape(2, 3, 4), kind, order=order))  # type: ignore[call-overload]
    script = "x <- ncp_read_npy('x.npy'); cat(dim(x), x[2, 1, 3], sum(x))"
    assert r(script, tmp_path) == "2 3 4 14 276"


def test_the_single_steps_give_history_and_factors(tmp_path: Path) -> None:
    script = """
    tensor <- ncp_upload(planted(c(9, 8, 7)), name = "Gr\\u00f6\\u00dfe")
    first <- ncp_watch(ncp_submit(tensor, 2, method = "hals"))
    job <- ncp_submit(tensor$id, rank = 2, method = "hals", beta = c(0, 0.1, 0.2), initial = first,
                      stop = list(max_iterations = 30, tolerance = 0))
    seen <- 0
    job <- ncp_watch(job, progress = function(rows) seen <<- seen + nrow(rows))
    stopifnot(seen == 30, identical(ncp_history(job)$iteration, 1:30), job$state == "succeeded")
    stopifnot(job$settings$beta == c(0, 0.1, 0.2), job$initial$job_id == first$id, tensor$name == "Gr\\u00f6\\u00dfe")
    stopifnot(nrow(ncp_history(job, after = 30)) == 0, dim(ncp_factors(job$id)[[2]]) == c(8, 2))
    ncp_delete(job)
    """
    r(PLANTED + script, tmp_path)


def test_a_study_is_asked_for_with_lists_of_one_too(tmp_path: Path) -> None:
    script = """
    tensor <- ncp_upload(planted(c(9, 8, 7)))
    study <- ncp_study(tensor, "compare", ranks = 2, methods = "hals", betas = c(0, 0.1), repeats = 2,
                       validate = list(holdout = list(fraction = 0.1, folds = 2)))
    study <- ncp_watch_study(study)
    stopifnot(study$state == "succeeded", vapply(study$table$rows, function(row) row$beta, 0) == c(0, 0.1))
    stopifnot(length(study$table$ranks[[1]]$holdout$relative_error) == 2)
    choice <- ncp_watch_study(ncp_study(tensor$id, "choose", rank = 4, seeds = 2)$id)
    stopifnot(identical(ncp_advice(study), c(study$recommendation$title, unlist(study$recommendation$sentences),
                                                  unlist(study$table$notes))))
    stopifnot(any(grepl("ended with a warning", unlist(study$table$notes))))
    stopifnot(startsWith(ncp_advice(study)[[1]], "Rank 2"), identical(ncp_advice(choice), choice$advice$reason))
    stopifnot(nzchar(choice$advice$reason), nrow(ncp_factors(choice$job_id)[[1]]) == 9)
    own <- ncp_study(tensor, "compare", ranks = 2, methods = c("hals", "anls-bpp"), repeats = 1, penalty = NULL)
    stopifnot("penalty" %in% names(own$request), is.null(own$request$penalty))
    """
    r(PLANTED + script, tmp_path)


def test_the_advice_ends_with_what_failed(unread_in_halves: Tensor, tmp_path: Path) -> None:
    script = f"""
    half <- list(split_half = list(mode = 1, parts = 2))
    study <- ncp_study("{unread_in_halves.id}", "choose", rank = 2, missing = "nan", validate = half)
    ncp_advice(ncp_watch_study(study))
    """
    said = r(script, tmp_path)
    assert said.startswith("validate.split_half: has halves in which index 4 of mode 2 has no observed entry (")
    assert 'exclude={"2": [4]})' in said


def test_the_stability_of_a_job_comes_as_matrices(tmp_path: Path) -> None:
    script = """
    tensor <- ncp_upload(planted(c(9, 8, 7)))
    job <- ncp_watch(ncp_submit(tensor, rank = 2, stability = TRUE, resamples = 5))
    found <- ncp_stability(job)
    stopifnot(identical(found$replicability, job$result$stability$replicability), length(found$split_half) == 2)
    stopifnot(is.null(found$modes[[1]]), dim(found$modes[[2]]$lower) == c(8, 2))
    stopifnot(all(found$modes[[3]]$lower <= found$modes[[3]]$upper))
    study <- ncp_watch_study(ncp_study(tensor, "stability", job_id = job$id, resamples = 6))
    stopifnot(study$state == "succeeded", study$result$stability$resamples == 6)
    """
    r(PLANTED + script, tmp_path)


@pytest.mark.parametrize(
    ("call", "condition", "words"),
    [
        ("ncp(matrix(1, 3, 3), rank = 0, beta = -1)", "ncp_refused", ["rank: ", "beta: "]),
        ("ncp(-matrix(1, 3, 3), rank = 1)", "ncp_refused", ["negative"]),
        ("ncp_factors('nothing')", "ncp_not_found", ["there is no job nothing"]),
        ("ncp_watch_study('nothing')", "ncp_not_found", ["there is no study nothing"]),
        ("ncp(matrix(1, 3, 3), 1, url = 'http://127.0.0.1:1')", "ncp_unavailable", ["no server answers at"]),
        ("ncp(matrix(1, 3, 3), 1, url = 'lab')", "ncp_usage", ["is not the address of a server"]),
        ("ncp_upload('nothing.npy')", "ncp_no_file", ["nothing.npy"]),
        ("ncp_upload(list(1))", "ncp_not_a_tensor", ["real numbers, not list"]),
    ],
)
def test_refusals_are_conditions_with_the_servers_words(
    call: str, condition: str, words: list[str], tmp_path: Path
) -> None:
    script = f"tryCatch({call}, ncp_error = function(e) cat(class(e)[1], conditionMessage(e), sep = '\\n'))"
    found, said = r(script, tmp_path).split("\n", 1)
    assert found == condition
    assert all(word in said for word in words)


def test_watching_goes_on_when_answers_are_lost(
    api_with_worker: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    job <- ncp_submit(ncp_upload(planted(c(9, 8, 7)), url = Sys.getenv("NEAR")), 3, method = "apg",
                      stop = list(max_iterations = 4000, tolerance = 0), url = Sys.getenv("NEAR"))
    ncp_watch(job)
    stopifnot(identical(ncp_history(job)$iteration, 1:4000))
    """
    with cutting_proxy(api_with_worker.address) as proxy:
        monkeypatch.setenv("NEAR", api_with_worker.address)
        monkeypatch.setenv("NCP_URL", proxy.address)
        losing = threading.Thread(target=proxy.lose_answers, args=(1_000,))
        losing.start()
        r(PLANTED + script, tmp_path)
        losing.join()


def test_the_guides_lines_run_as_written(tmp_path: Path) -> None:
    guide = (ROOT / "docs/how-to/r.md").read_text()
    written = re.findall(r"^```r\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    assert len(written) == 3
    said = r("set.seed(2)\n" + "\n".join(written), tmp_path)
    assert "3 components" in said
    assert "rank 2 relative error 0." in said
