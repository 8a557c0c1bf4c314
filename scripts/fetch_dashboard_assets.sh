#!/usr/bin/env bash
# Fetches the chart library of the dashboard from npm into the package. Without npm the page shows numbers only.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.6.32
vendor=src/monolith/dashboard/static/vendor
if [ -e "$vendor/VERSION" ] && [ "$(cat "$vendor/VERSION")" = "$version" ]; then
  exit 0
fi
if ! command -v npm >/dev/null; then
  echo "npm is not installed, so the dashboard will show numbers without charts; install npm and run make dashboard-assets" >&2
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! (cd "$work" && npm pack --silent "uplot@$version" >/dev/null 2>&1); then
  echo "npm cannot fetch uplot@$version, so the dashboard will show numbers without charts" >&2
  exit 0
fi
tar -xzf "$work"/uplot-*.tgz -C "$work"
mkdir -p "$vendor"
cp "$work/package/dist/uPlot.iife.min.js" "$work/package/dist/uPlot.min.css" "$work/package/LICENSE" "$vendor/"
echo "$version" >"$vendor/VERSION"
