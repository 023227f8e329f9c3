#!/bin/sh
# Builds what a cluster of the tests runs and prints the folders, as PATH has them.
set -eu
cd "$(dirname "$0")"
. ../once.sh

takes="ten to twenty minutes"
containerd=github.com/containerd/containerd/v2/cmd
plugins=github.com/containernetworking/plugins/plugins
once kubernetes k8s.io/kubernetes kubernetes=. \
	containerd=$containerd/containerd ctr=$containerd/ctr containerd-shim-runc-v2=$containerd/containerd-shim-runc-v2 \
	bridge=$plugins/main/bridge loopback=$plugins/main/loopback host-local=$plugins/ipam/host-local
programs=$dir

# gVisor's shim gives itself a better score before the kernel's out-of-memory killer, and
# ends where it may not: root without CAP_SYS_RESOURCE, as in many containers. That one
# error is no matter in a test.
cd shim
takes="a minute"
once shim gvisor.dev/gvisor
shim=containerd-shim-runsc-v1
exec 9>"$dir/lock"
flock 9
if [ ! -x "$dir/$shim" ]; then
	echo "building $shim of gVisor $version; the first time takes $takes" >&2
	source=$(mktemp -d "$dir/source.XXXXXX")
	trap 'rm -rf "$source"' EXIT
	cp go.mod go.sum tools.go "$source"
	cd "$source"
	GOWORK=off GOFLAGS= go mod vendor >&2
	manager=vendor/gvisor.dev/gvisor/pkg/shim/v1/manager.go
	sed -i 's/if err := sys.SetOOMScore(\(.*\)); err != nil {/if err := sys.SetOOMScore(\1); err != nil \&\& !os.IsPermission(err) {/' $manager
	grep -q 'os.IsPermission(err) {' $manager || {
		echo "$manager is not what this script expects" >&2
		exit 1
	}
	GOWORK=off GOFLAGS= CGO_ENABLED=0 go build -mod=vendor -buildvcs=false -trimpath -ldflags '-s -w' -o "$dir/$shim.new" gvisor.dev/gvisor/shim >&2
	mv "$dir/$shim.new" "$dir/$shim"
fi
exec 9>&-
echo "$programs:$dir"
