#!/bin/sh
# Check the format, the style and the types of the page's code in app/static. With --fix, format it first.
# A machine without node leaves these checks out and says so; with REQUIRE_ALL_TOOLS=1 that is an error.
set -eu
cd "$(dirname "$0")/../.."
tools=tools/page
if ! { command -v node && command -v npm; } > /dev/null 2>&1; then
    echo "The checks of app/static were left out: node and npm are not installed." >&2
    test "${REQUIRE_ALL_TOOLS:-0}" != 1
    exit
fi
if ! cmp -s "$tools/package-lock.json" "$tools/node_modules/.installed"; then
    npm ci --prefix "$tools" --no-audit --no-fund --loglevel error
    cp "$tools/package-lock.json" "$tools/node_modules/.installed"
fi
bin=$tools/node_modules/.bin
test "${1:-}" != --fix || "$bin/prettier" --config "$tools/prettier.json" --log-level warn --write app/static
"$bin/prettier" --config "$tools/prettier.json" --log-level warn --check app/static
"$bin/eslint" --config "$tools/eslint.config.js" --max-warnings 0 app/static
"$bin/tsc" --project "$tools/tsconfig.json"
