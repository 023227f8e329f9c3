# Sourced by the build.sh of a nested module, in the folder of the module.

# once NAME MODULE PROGRAM=PACKAGE... builds the programs once into the user's cache and
# sets dir to the folder that has them. The folder is named after NAME, the version of
# MODULE in go.mod and the sum of what is built. The first build takes as long as $takes
# says; later calls find it.
once() {
	version=$(sed -n "s|.*$2 v\([^ ]*\).*|\1|p" go.mod)
	sum=$({ go version; cat go.mod go.sum $(ls | grep '\.go$' | grep -vx tools.go); } | sha256sum | cut -c1-12)
	dir=${XDG_CACHE_HOME:-$HOME/.cache}/sallyport/$1-$version-$sum
	name=$1
	shift 2
	mkdir -p "$dir"
	# One builds, the others wait for it; each rename makes a program whole or absent.
	exec 9>"$dir/lock"
	flock 9
	for program; do
		bin=$dir/${program%%=*}
		[ ! -x "$bin" ] || continue
		echo "building ${bin##*/} of $name $version; the first time takes ${takes:-one to three minutes}" >&2
		GOWORK=off GOFLAGS= CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$bin.new" "${program#*=}" >&2
		mv "$bin.new" "$bin"
	done
	exec 9>&-
}
