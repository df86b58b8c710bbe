# sources ROOT: the project's own C++ and CUDA files, tracked or about to be, one a line.
sources() {
  git -C "$1" ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' '*.inc' |
    while IFS= read -r file; do [[ ! -f $1/$file ]] || printf '%s\n' "$file"; done
}
