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

say() { echo "setup: $*" >&2; }

preprocess() { ${CC:-gcc} -E -x c -; }

header() { echo "#include <$1>" | preprocess; } # Can the compiler find it?

pcre2() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' | preprocess; }

cmocka() { printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h | preprocess; }

runtime() { # libFuzzer and AddressSanitizer of clang
    file=$(clang -print-file-name=libclang_rt.fuzzer-"$(uname -m)".a) && [ -f "$file" ]
}

compiler() { command -v gcc && command -v ar; }

case ${CC:-gcc} in
    gcc | cc) want gcc compiler ;;
    *)
        command -v "${CC%% *}" >/dev/null 2>&1 || {
            say "CC is '$CC', but there is no such program here"
            exit 1
        }
        want binutils command -v ar
        ;;
esac
want libc6-dev header stdio.h
want make command -v make
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

command -v apt-get >/dev/null 2>&1 || {
    say "this system has no apt-get: install by hand what Debian calls$missing"
    exit 1
}
root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        say "you are not root and there is no sudo: ask for \`apt-get install$missing\`"
        exit 1
    }
    root=sudo
    sudo -n true 2>/dev/null || [ -t 0 ] || root="sudo -n"
fi
say "installing$missing"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
install() {
    # shellcheck disable=SC2086 -- a list of packages
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >>"$log" 2>&1
}
install || { $root apt-get update -q >>"$log" 2>&1; install; } || {
    say "apt-get could not install$missing: $(grep -E '^(E|Err|sudo)' "$log" | tail -n 1)"
    exit 1
}
