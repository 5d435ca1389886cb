#!/bin/sh
# Installs what is missing on Debian or Ubuntu and says nothing when all is there.
#   tools/setup.sh build   compiler and libraries of the programs
#   tools/setup.sh test    and what the tests need
#   tools/setup.sh fuzz    and clang with its runtime, for `make fuzz`
set -u
stage=${1:-build}
missing=

want() { # want PACKAGE TEST...: PACKAGE is needed unless TEST succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

header() { # Can the compiler find this header?
    echo "#include <$1>" | ${CC:-cc} -E -x c - || echo "#include <$1>" | gcc -E -x c -
}

pcre2() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' | gcc -E -x c -; }

cmocka() { printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h | gcc -E -x c -; }

runtime() { # libFuzzer and AddressSanitizer of clang
    file=$(clang -print-file-name=libclang_rt.fuzzer-"$(uname -m)".a) && [ -f "$file" ]
}

tools() { command -v gcc && command -v make && command -v ar && header stdio.h; }

want build-essential tools
want pkg-config command -v pkg-config
want libpcre2-dev pcre2
want libjansson-dev header jansson.h
want libedit-dev header histedit.h
if [ "$stage" != build ]; then
    want libcmocka-dev cmocka
    want python3 command -v python3
fi
if [ "$stage" = fuzz ]; then
    want clang command -v clang
    want libclang-rt-dev runtime
fi
[ -z "$missing" ] && exit 0

say() { echo "setup: $*" >&2; }
command -v apt-get >/dev/null 2>&1 || {
    say "missing here:$missing (names of Debian packages); this system has no apt-get, install their like by hand"
    exit 1
}
root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        say "missing:$missing; you are not root and there is no sudo: ask for \`apt-get install$missing\`"
        exit 1
    }
    root=sudo
    sudo -n true 2>/dev/null || [ -t 0 ] || root="sudo -n"
fi
say "installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    # shellcheck disable=SC2086 -- a list of packages
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >>"$log" 2>&1
}
install || { $root apt-get update -q >>"$log" 2>&1; install; } || {
    say "apt-get could not install$missing: $(grep -E '^(E|Err|sudo)' "$log" | tail -n 1)"
    exit 1
}
