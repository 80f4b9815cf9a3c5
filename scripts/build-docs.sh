#!/usr/bin/env bash
# Builds the documentation as a book (book.toml) into target/book.
#
# mdBook takes its pages from one folder. So the pages, and the files they link to, are copied to
# target/book-src with the same layout as in the repository; all relative links stay valid.
set -euo pipefail
cd "$(dirname "$0")/.."

mdbook_version=0.5.4
pages=target/book-src

command -v mdbook >/dev/null || cargo install --locked "mdbook@$mdbook_version"

rm -rf "$pages"
mkdir -p "$pages"
# Only files that git knows or would add: deploy/ may hold secrets that were generated there.
git ls-files -z --cached --others --exclude-standard -- README.md ARCHITECTURE.md CONTRIBUTING.md \
  CHANGELOG.md LICENSE Dockerfile docs deploy examples proto 'crates/*/examples/*' |
  tar --null --files-from=- -cf - | tar -xf - -C "$pages"

# docs/SUMMARY.md links relative to docs/, the book's list of pages relative to the repository.
sed -E -e 's#\]\(#](docs/#' -e 's#\]\(docs/\.\./#](#' "$pages/docs/SUMMARY.md" >"$pages/SUMMARY.md"
rm "$pages/docs/SUMMARY.md"

mdbook build
echo "The documentation is in target/book/index.html"
