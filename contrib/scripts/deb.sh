#!/bin/sh
# make deb: packs what make build, man and completion have made. DEB_DIR says
# where to, VERSION which; by default bin and the program's own.
set -eu
[ $# = 0 ] || { echo "deb: unexpected argument \"$1\"; usage: deb.sh" >&2; exit 2; }
cd "$(dirname "$0")/../.."
GO=${GO:-go}
dir=${DEB_DIR:-bin}
# Debian sorts 0.1.0~dev before 0.1.0.
VERSION=${VERSION:-$(bin/pfd --version | awk '{print $3}' | sed 's/-/~/; s/[^A-Za-z0-9.+~].*//')}
ARCH=$($GO env GOARCH)
STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
mkdir "$STAGE/man"
for program in pfd exanet-hostd exanetctl; do
	cp "bin/$program" "$STAGE/"
	if command -v strip >/dev/null; then strip --strip-unneeded "$STAGE/$program"; fi
done
for page in bin/man/*; do gzip -9n <"$page" >"$STAGE/man/${page##*/}.gz"; done
# Documents, with what they name beside them; what the package has not got is linked at home.
home=https://github.com/exanet/pfd/blob/main
mkdir -p "$STAGE/docs/spec" "$STAGE/docs/plots"
for page in docs/*.md docs/spec/*.md; do
	sed -e 's|](\.\./examples/\([a-z]*\)/main\.go|](examples/\1/main.go|g' \
		-e "s|](\(\.\./\)\{2,\}\([A-Za-z]\)|]($home/\2|g" "$page" >"$STAGE/$page"
	case $page in docs/spec/*) ;; *) sed -i "s|](\.\./\([A-Za-z]\)|]($home/\1|g" "$STAGE/$page" ;; esac
done
cp docs/*.svg docs/board.dts docs/v1.schema.json "$STAGE/docs/"
cp docs/plots/*.svg "$STAGE/docs/plots/"
{
	printf 'exanet (%s) unstable; urgency=medium\n\n' "$VERSION"
	# The newest section of CHANGELOG.md.
	awk '/^## / { n++; next }
		n == 1 && NF {
			line = "   "
			if ($1 == "-") { $1 = ""; line = "  *" }
			for (i = 1; i <= NF; i++) {
				if ($i != "" && length(line) + 1 + length($i) > 78) { print line; line = "   " }
				if ($i != "") line = line " " $i
			}
			print line
		}' CHANGELOG.md
	printf '\n -- ExaNet developers <exanet@exanet.invalid>  %s\n' "$(date -u -R)"
} | gzip -9n >"$STAGE/changelog.gz"
export VERSION ARCH STAGE
package() {
	GOFLAGS=-mod=mod $GO tool -modfile=contrib/scripts/tools.mod nfpm package --config "$1" --packager deb --target "$dir"
}
package contrib/nfpm.yaml
CC=${CC:-gcc}
if ! command -v "$CC" >/dev/null; then
	echo "deb: no $CC: libexanet-dev is not made" >&2
	exit 0
fi
MULTIARCH=$("$CC" -print-multiarch)
export MULTIARCH
sh contrib/scripts/libexanet.sh "$STAGE/c" /usr "/usr/lib/$MULTIARCH"
strip --strip-unneeded "$STAGE/c/libexanet.so.1"
strip --strip-debug --enable-deterministic-archives "$STAGE/c/libexanet.a"
package contrib/nfpm-lib.yaml
package contrib/nfpm-dev.yaml
sh contrib/scripts/fi.sh "$STAGE/c"
[ -e "$STAGE/c/libexanet-fi.so" ] || exit 0
strip --strip-unneeded "$STAGE/c/libexanet-fi.so"
gzip -9n <libexanet/fi/fi_exanet.7 >"$STAGE/fi_exanet.7.gz"
package contrib/nfpm-fi.yaml
