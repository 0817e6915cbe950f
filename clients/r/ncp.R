# Client of a sparse-ncp server for R. Load it with source("ncp.R"); it needs httr2 and jsonlite.

#' Decompose a nonnegative tensor on a sparse-ncp server
#'
#' Uploads the tensor, submits a job, waits for it and downloads the factors.
#'
#' @param x Array of any order, or the path of a .npy file.
#' @param rank Number of components allowed.
#' @param ... Any field of a job, such as `sparsity`, `method` or `stop`.
#' @param axes Labels: a list with one `list(name =, unit =, values =)` per mode.
#' @param name Name of the tensor and of the job.
#' @param progress TRUE to print progress, FALSE for none, or a function of the new rows of the history.
#' @param url Address of the server; by default NCP_URL, or as stored by `ncp login`.
#' @param key API key; by default NCP_KEY, or as stored by `ncp login`.
#' @return A list with `factors`, one matrix (length x rank) per mode, and the records `job` and `tensor`.
#' @examples
#' r <- ncp(x, rank = 8, sparsity = 0.02)
#' r$job$result$relative_error
ncp <- function(x, rank, ..., axes = NULL, name = NULL, progress = interactive(), url = NULL, key = NULL) {
  tensor <- ncp_upload(x, name = name, axes = axes, url = url, key = key)
  job <- ncp_submit(tensor, rank, ..., name = name, url = url, key = key)
  job <- ncp_watch(job, progress = progress, url = url, key = key)
  if (job$state != "succeeded") {
    words <- if (is.null(job$error)) sprintf("job %s is %s", job$id, job$state)
             else sprintf("job %s failed: %s (%s)", job$id, job$error$message, job$error$remedy)
    .ncp_stop("job_failed", words, job = job)
  }
  list(factors = ncp_factors(job, url = url, key = key), job = job, tensor = tensor)
}

#' Upload a tensor
#'
#' @inheritParams ncp
#' @return Record of the tensor.
#' @examples
#' tensor <- ncp_upload(x, name = "first", axes = list(list(name = "sample"), list(name = "emission", unit = "nm")))
ncp_upload <- function(x, name = NULL, axes = NULL, url = NULL, key = NULL) {
  path <- x
  if (!is.character(x)) {
    path <- tempfile(fileext = ".npy")
    on.exit(unlink(path))
    ncp_write_npy(x, path)
  } else if (!file.exists(x)) {
    .ncp_stop("no_file", sprintf("there is no file %s", x))
  }
  request <- httr2::req_url_query(.ncp_request("/v1/tensors", url, key), name = name)
  request <- httr2::req_body_file(request, path, type = "application/octet-stream")
  tensor <- .ncp_json(.ncp_perform(request, repeatable = FALSE))
  if (!is.null(axes)) {
    labels <- lapply(axes, function(axis) {
      if (!is.null(axis$values)) axis$values <- as.list(axis$values)  # also a single value becomes a list
      axis
    })
    request <- httr2::req_method(.ncp_request(paste0("/v1/tensors/", tensor$id, "/axes"), url, key), "PUT")
    .ncp_perform(.ncp_body(request, labels))
    tensor <- .ncp_json(.ncp_perform(.ncp_request(paste0("/v1/tensors/", tensor$id), url, key)))
  }
  tensor
}

#' Queue the decomposition of a tensor
#'
#' @inheritParams ncp
#' @param tensor Record or id of a tensor.
#' @param ... Any field of a job; `stop` is a list, `initial` a job or its id, and a vector has one value per mode.
#'   `exclude` is a list with indices (from 0) or labels per mode, such as `list("1" = c(2, 5))`.
#' @return Record of the job.
#' @examples
#' job <- ncp_submit(tensor, rank = 6, method = "hals", stop = list(max_iterations = 500))
ncp_submit <- function(tensor, rank, ..., url = NULL, key = NULL) {
  fields <- c(list(tensor_id = .ncp_id(tensor), rank = rank), list(...))
  if (is.null(fields$method)) fields$method <- NULL  # not given
  if (is.null(fields$method) && is.null(fields$preset)) fields$preset <- "recommended"
  if (!is.null(fields$initial)) fields$initial <- list(job_id = .ncp_id(fields$initial))
  if (!is.null(fields$exclude)) fields$exclude <- lapply(fields$exclude, as.list)  # also a single value becomes a list
  .ncp_queue("/v1/jobs", fields, url, key)
}

#' Queue a study: many runs on one tensor
#'
#' @inheritParams ncp_submit
#' @param kind "compare" to compare ranks, methods and weights, "choose" to choose the number of components,
#'   or "stability" to assess the stability of the components of the job `job_id`.
#' @param ... Any field of a study: `ranks`, `methods`, `betas` or `sparsities` and `repeats`, or `rank` and `seeds`.
#'   NULL is null, as in `penalty = NULL` for the own penalty of each method.
#' @return Record of the study.
#' @examples
#' study <- ncp_study(tensor, "compare", ranks = 2:4, methods = "anls-bpp", repeats = 2)
ncp_study <- function(tensor, kind, ..., url = NULL, key = NULL) {
  fields <- c(list(kind = kind, tensor_id = .ncp_id(tensor)), list(...))
  lists <- intersect(names(fields), c("ranks", "methods", "betas", "sparsities"))
  fields[lists] <- lapply(fields[lists], as.list)  # also a single value becomes a list
  if (!is.null(fields$exclude)) fields$exclude <- lapply(fields$exclude, as.list)
  .ncp_queue("/v1/studies", fields, url, key)
}

#' Print the advice of a study that has ended
#'
#' @param study Record of a study, as `ncp_watch_study()` returns it.
#' @return The lines that were printed, invisibly: the reason of a choice, or the recommendation of a
#'   comparison and the notes on its table; last, what failed.
#' @examples
#' ncp_advice(ncp_watch_study(study))
ncp_advice <- function(study) {
  lines <- character(0)
  if (!is.null(study$advice)) lines <- study$advice$reason
  if (!is.null(study$recommendation)) lines <- c(study$recommendation$title, unlist(study$recommendation$sentences))
  lines <- c(lines, unlist(study$table$notes))
  if (!is.null(study$error)) lines <- c(lines, sprintf("%s (%s)", study$error$message, study$error$remedy))
  writeLines(lines)
  invisible(lines)
}

#' Wait until a study has ended
#'
#' @inheritParams ncp
#' @param study Record or id of a study.
#' @param timeout Longest time to wait, in seconds.
#' @return Record of the study: `table` and `recommendation` of a comparison, `advice` of a choice.
#' @examples
#' study <- ncp_watch_study(study, timeout = 600)
ncp_watch_study <- function(study, timeout = Inf, url = NULL, key = NULL) {
  path <- .ncp_path("/v1/studies", .ncp_id(study))
  began <- proc.time()[["elapsed"]]
  pause <- 0.2
  repeat {
    study <- .ncp_json(.ncp_perform(.ncp_request(path, url, key)))
    if (study$state %in% c("succeeded", "failed", "cancelled")) return(study)
    if (proc.time()[["elapsed"]] - began > timeout) {
      .ncp_stop("timeout", sprintf("study %s has not ended within %g s; it continues on the server", study$id, timeout))
    }
    Sys.sleep(pause)
    pause <- min(2, 1.5 * pause)
  }
}

#' Wait until a job has ended
#'
#' @inheritParams ncp
#' @param job Record or id of a job.
#' @param timeout Longest time to wait, in seconds. The job continues after a timeout.
#' @return Record of the job.
#' @examples
#' job <- ncp_watch(job, progress = TRUE, timeout = 120)
ncp_watch <- function(job, progress = FALSE, timeout = Inf, url = NULL, key = NULL) {
  id <- .ncp_id(job)
  began <- proc.time()[["elapsed"]]
  printed <- began
  last <- 0
  shown <- NULL
  pause <- 0.1
  repeat {
    job <- .ncp_json(.ncp_perform(.ncp_request(.ncp_path("/v1/jobs", id), url, key)))
    now <- proc.time()[["elapsed"]]
    if (is.function(progress) || (isTRUE(progress) && now - printed > 2)) {
      rows <- ncp_history(id, after = last, url = url, key = key)
      if (nrow(rows) > 0) {
        row <- rows[nrow(rows), ]
        last <- row$iteration
        if (is.function(progress)) progress(rows)
        else message(sprintf("iteration %d, objective %.6g, relative error %.6f",
                             row$iteration, row$objective, row$relative_error))
      }
      printed <- now
    }
    if (isTRUE(progress) && !identical(job$paused$message, shown)) {
      shown <- job$paused$message
      if (!is.null(shown)) message(sprintf("job %s %s", id, shown))
    }
    if (job$state %in% c("succeeded", "failed", "cancelled")) return(job)
    if (now - began > timeout) {
      .ncp_stop("timeout", sprintf("job %s has not ended within %g s; it continues on the server", id, timeout))
    }
    Sys.sleep(pause)
    pause <- min(1, 1.5 * pause)
  }
}

#' Return the numbers of all iterations
#'
#' @inheritParams ncp_watch
#' @param after Only iterations after this one.
#' @return A data frame with one row per iteration.
#' @examples
#' plot(ncp_history(job)$objective, log = "y")
ncp_history <- function(job, after = 0, url = NULL, key = NULL) {
  path <- paste0(.ncp_path("/v1/jobs", .ncp_id(job)), "/history")
  pages <- list()
  repeat {
    answer <- .ncp_perform(httr2::req_url_query(.ncp_request(path, url, key), after = after))
    page <- jsonlite::fromJSON(httr2::resp_body_string(answer))
    if (length(page) > 0) {
      pages[[length(pages) + 1]] <- page
      after <- page$iteration[nrow(page)]
    }
    link <- httr2::resp_header(answer, "link")
    if (length(page) == 0 || is.null(link) || !grepl("rel=\"?next", link)) break
  }
  if (length(pages) == 0) return(data.frame(iteration = integer(), objective = numeric(), relative_error = numeric()))
  do.call(rbind, pages)
}

#' Download the factors of a job
#'
#' @inheritParams ncp_watch
#' @return A list with one matrix per mode; while the job is running, those of its last checkpoint.
#' @examples
#' factors <- ncp_factors(job)
ncp_factors <- function(job, url = NULL, key = NULL) {
  file <- tempfile(fileext = ".npz")
  folder <- tempfile("factors")
  on.exit(unlink(c(file, folder), recursive = TRUE))
  path <- paste0(.ncp_path("/v1/jobs", .ncp_id(job)), "/factors")
  writeBin(httr2::resp_body_raw(.ncp_perform(.ncp_request(path, url, key))), file)
  names <- grep("^A[0-9]+[.]npy$", utils::unzip(file, list = TRUE)$Name, value = TRUE)
  utils::unzip(file, files = names, exdir = folder)
  lapply(seq_along(names), function(mode) ncp_read_npy(file.path(folder, sprintf("A%d.npy", mode))))
}

#' Return the stability of the components and loadings of a job
#'
#' @inheritParams ncp_watch
#' @return A list: `replicability` and `split_half` of every component, and in `modes` for every mode `lower` and
#'   `upper` bounds of its loadings as matrices; NULL for the mode of the samples.
#' @examples
#' job <- ncp_watch(ncp_submit(tensor, rank = 4, stability = TRUE))
#' ncp_stability(job)$replicability
ncp_stability <- function(job, url = NULL, key = NULL) {
  path <- paste0(.ncp_path("/v1/jobs", .ncp_id(job)), "/stability")
  .ncp_json(.ncp_perform(.ncp_request(path, url, key)))
}

#' Return the diagnostics of a job that has ended
#'
#' @inheritParams ncp_watch
#' @return A list: core consistency, shares and congruence of the components, residual and leverage of every index, and
#'   outlying samples in `samples`. Indices count from 0, as in `exclude`.
#' @examples
#' ncp_diagnostics(job)$samples$outliers
ncp_diagnostics <- function(job, url = NULL, key = NULL) {
  .ncp_json(.ncp_perform(.ncp_request(paste0(.ncp_path("/v1/jobs", .ncp_id(job)), "/diagnostics"), url, key)))
}

#' Compare the models of two jobs side by side, such as before and after samples were left out
#'
#' @inheritParams ncp_watch
#' @param other Record or id of the other job.
#' @return A list: matched `components` with their congruence and weights, the errors and core consistencies of both, and
#'   in `left_out` the scores of indices that only one job has fitted.
#' @examples
#' ncp_comparison(after, before)$components[[1]]$congruence
ncp_comparison <- function(job, other, url = NULL, key = NULL) {
  request <- .ncp_request(paste0(.ncp_path("/v1/jobs", .ncp_id(job)), "/comparison"), url, key)
  .ncp_json(.ncp_perform(httr2::req_url_query(request, other = .ncp_id(other))))
}

#' Stop a job
#'
#' @inheritParams ncp_watch
#' @return Record of the job. What was computed is kept.
#' @examples
#' ncp_cancel(job)
ncp_cancel <- function(job, url = NULL, key = NULL) {
  request <- .ncp_request(paste0(.ncp_path("/v1/jobs", .ncp_id(job)), "/cancel"), url, key)
  .ncp_json(.ncp_perform(httr2::req_method(request, "POST")))
}

#' Delete a job that has ended, with its factors
#'
#' @inheritParams ncp_watch
#' @examples
#' ncp_delete(job)
ncp_delete <- function(job, url = NULL, key = NULL) {
  request <- .ncp_request(.ncp_path("/v1/jobs", .ncp_id(job)), url, key)
  invisible(.ncp_perform(httr2::req_method(request, "DELETE"), repeatable = FALSE))
}

#' Write an array of any order to a .npy file
#'
#' @param x Array of doubles, integers or logicals.
#' @param path File to write.
#' @examples
#' ncp_write_npy(array(runif(24), c(2, 3, 4)), "x.npy")
ncp_write_npy <- function(x, path) {
  if (!(is.double(x) || is.integer(x) || is.logical(x)) || is.factor(x)) {
    .ncp_stop("not_a_tensor", sprintf("a tensor is an array of real numbers, not %s", class(x)[1]))
  }
  if (!is.double(x) && anyNA(x)) x <- x + 0  # a missing integer becomes NaN
  shape <- if (is.null(dim(x))) length(x) else dim(x)
  type <- if (is.double(x)) "<f8" else if (is.integer(x)) "<i4" else "|b1"
  header <- sprintf("{'descr': '%s', 'fortran_order': True, 'shape': (%s,), }", type,
                    paste(format(shape, scientific = FALSE, trim = TRUE), collapse = ", "))
  header <- paste0(header, strrep(" ", 63 - (10 + nchar(header)) %% 64), "\n")
  file <- file(path, "wb")
  on.exit(close(file))
  writeBin(as.raw(c(0x93, utf8ToInt("NUMPY"), 1, 0)), file)
  writeBin(nchar(header), file, size = 2, endian = "little")
  writeBin(charToRaw(header), file)
  step <- 2^22  # no second copy of a large array
  for (first in seq(1, max(1, length(x)), by = step)) {
    part <- x[first:min(length(x), first + step - 1)]
    writeBin(if (is.logical(x)) as.raw(part) else as.vector(part), file, endian = "little")
  }
}

#' Read a .npy file of floating-point numbers or integers
#'
#' @param path File to read.
#' @return An array.
#' @examples
#' x <- ncp_read_npy("x.npy")
ncp_read_npy <- function(path) {
  file <- file(path, "rb")
  on.exit(close(file))
  start <- readBin(file, "raw", 8)
  if (!identical(start[1:6], as.raw(c(0x93, utf8ToInt("NUMPY"))))) .ncp_stop("not_npy", sprintf("%s is not a .npy file", path))
  size <- readBin(file, "integer", 1, size = if (start[7] == as.raw(1)) 2 else 4, signed = start[7] != as.raw(1),
                  endian = "little")
  header <- rawToChar(readBin(file, "raw", size))
  type <- sub(".*'descr': '([^']*)'.*", "\\1", header)
  shape <- as.numeric(regmatches(s <- sub(".*'shape': \\(([^)]*)\\).*", "\\1", header), gregexpr("[0-9]+", s))[[1]])
  kind <- if (grepl("f", type)) "numeric" else "integer"
  endian <- if (startsWith(type, ">")) "big" else "little"
  width <- as.integer(sub("^.*?([0-9]+)$", "\\1", type))
  values <- readBin(file, kind, prod(shape), size = width, endian = endian)
  if (grepl("'fortran_order': True", header)) array(values, shape) else aperm(array(values, rev(shape)))
}

.ncp_stop <- function(kind, words, ...) {
  stop(structure(class = c(paste0("ncp_", kind), "ncp_error", "error", "condition"),
                 list(message = words, call = NULL, ...)))
}

.ncp_id <- function(thing) if (is.list(thing)) thing$id else thing

# Submit with an idempotency key, so that a repeated request does not create a second job.
.ncp_queue <- function(path, fields, url, key) {
  once <- paste0(basename(tempfile("r")), format(Sys.time(), "%s%OS6"), Sys.getpid())
  request <- httr2::req_headers(.ncp_request(path, url, key), "Idempotency-Key" = once)
  .ncp_json(.ncp_perform(.ncp_body(request, fields)))
}

.ncp_path <- function(collection, id) paste0(collection, "/", utils::URLencode(id, reserved = TRUE))

# Add a JSON body: single numbers as numbers, vectors as lists, NULL as null.
.ncp_body <- function(request, value) {
  text <- jsonlite::toJSON(value, auto_unbox = TRUE, digits = NA, null = "null", na = "null")
  httr2::req_body_raw(request, as.character(text), type = "application/json")
}

.ncp_json <- function(answer) jsonlite::fromJSON(httr2::resp_body_string(answer), simplifyDataFrame = FALSE)

.ncp_server <- function(url, key) {
  stored <- list(url = "http://127.0.0.1:8000", key = "")
  folder <- Sys.getenv("XDG_CONFIG_HOME", file.path(path.expand("~"), ".config"))
  path <- file.path(folder, "ncp", "config.toml")
  if (file.exists(path)) {
    for (line in grep("^(url|key) *= *\"", readLines(path, warn = FALSE), value = TRUE)) {
      stored[[sub(" *=.*", "", line)]] <- jsonlite::fromJSON(paste0("[", sub("^[^=]*= *", "", line), "]"))
    }
  }
  if (is.null(url)) url <- Sys.getenv("NCP_URL", stored$url)
  url <- sub("/+(v1/*)?$", "", url)
  if (is.null(key)) key <- Sys.getenv("NCP_KEY", if (url == stored$url) stored$key else "")  # only for its own server
  if (!grepl("^https?://[^ /]+", url)) {
    .ncp_stop("usage", sprintf("'%s' is not the address of a server; give one such as http://127.0.0.1:8000", url))
  }
  list(url = url, key = key)
}

.ncp_request <- function(path, url, key) {
  server <- .ncp_server(url, key)
  request <- httr2::req_error(httr2::request(paste0(server$url, path)), is_error = function(answer) FALSE)
  if (nzchar(server$key)) {
    request <- httr2::req_headers(request, Authorization = paste("Bearer", server$key), .redact = "Authorization")
  }
  request
}

# Send a request and return the response. While a server that was reached before is unavailable, requests that are
# safe to repeat are retried for ten minutes.
.ncp_reached <- new.env()
.ncp_perform <- function(request, repeatable = TRUE) {
  server <- sub("/v1/.*", "", request$url)
  began <- proc.time()[["elapsed"]]
  pause <- 0.2
  repeat {
    answer <- tryCatch(httr2::req_perform(request), error = identity)
    failed <- inherits(answer, "error")
    status <- if (failed) 0 else httr2::resp_status(answer)
    known <- exists(server, envir = .ncp_reached)
    if (!failed) assign(server, TRUE, envir = .ncp_reached)
    too_fast <- status == 429 && grepl(":too-fast", httr2::resp_body_string(answer), fixed = TRUE)
    again <- too_fast || (status %in% c(0, 502, 503, 504) && repeatable && known)
    if (!again || proc.time()[["elapsed"]] - began > 600) break
    wait <- if (failed) NULL else httr2::resp_header(answer, "retry-after")
    Sys.sleep(max(pause, as.numeric(wait)))
    pause <- min(5, 2 * pause)
  }
  if (failed) {
    reason <- conditionMessage(if (is.null(answer$parent)) answer else answer$parent)
    .ncp_stop("unavailable", sprintf("no server answers at %s: %s", server, reason))
  }
  if (status >= 300) .ncp_refuse(server, answer)
  answer
}

# Raise the error that the server describes.
.ncp_refuse <- function(server, answer) {
  status <- httr2::resp_status(answer)
  if (!identical(httr2::resp_content_type(answer), "application/problem+json")) {
    .ncp_stop("unavailable", sprintf("%s is not a sparse-ncp server (HTTP %d)", server, status))
  }
  problem <- .ncp_json(answer)
  words <- vapply(problem$errors, function(one) sprintf("%s: %s (%s)", one$field, one$problem, one$remedy), "")
  if (length(words) == 0) words <- paste0(problem$detail, if (!is.null(problem$remedy)) sprintf(" (%s)", problem$remedy))
  kinds <- c("401" = "unauthorized", "404" = "not_found", "429" = "rate_limited", "503" = "unavailable")
  kind <- kinds[as.character(status)]
  .ncp_stop(if (is.na(kind)) "refused" else kind, paste(words, collapse = "; "), problem = problem)
}
