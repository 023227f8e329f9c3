package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sallyport/internal/durable"
)

// runscFlags are what gVisor needs here: systrap works where there is no
// nested virtualisation, and without an overlay of its own the engine sees the
// files that a sandbox writes, which commit, diff and cp depend on. Connections stay
// in a memory checkpoint, since the gateway holds their other halves; without the
// flag gVisor ends them at the second one.
var runscFlags = []string{"--platform=systrap", "--overlay2=none", "--file-access=shared", "--allow-connected-on-save"}

// startShimScript stands between the engine and a runtime. After a reboot an engine
// may run before anything guards the bridge, and whoever can reach it could
// start a container there; so the runtime itself asks for the datapath's pin.
//
// Verbs are looked for among all words since global flags come first and take
// values; a container identifier is hexadecimal, so none can be mistaken. The
// reason goes to --log too, which is where the engine's shim looks for it.
//
// It is also how a container begins with the memory that it had: the engine starts it
// as any other, and where there is a handshake under the container's identifier,
// "start" becomes gVisor's "restore" from the folder that the handshake names, once
// that folder is filled and the handshake unlocked. In the handshake the shim marks that
// it begins, since the engine may end before it hears what came of that: a handshake
// emptied without the mark, under its lock, shows that nothing begins any more. The mark
// is the file's and not the name's: a shim that comes late has nothing to do with the
// handshake of the next restore. That nothing ran is marked after it where gVisor says so,
// with the status that only it gives to what it has said: its sandbox has answered with
// an error (which a call that broke off, "urpc method", is not, and which may hold the
// stacks of its goroutines, many KiB), or was not asked yet.
// Any other runtime that fails may have run until "end", as when runsc cannot write
// down that it has restored. As it restores it asks for its working directory, which may be gone where a
// crash cut the last start short: so that is another. The engine's own way
// (start with a checkpoint) copies the memory into containerd's store twice, which is
// on a disk, in the clear.
//
// Of a container that does not start, the engine (20.10) removes nothing below
// containerd: "task must be stopped before deletion: created". So what "create" has
// begun is ended here.
const startShimScript = `#!/bin/sh
# Written by sallyport: no container starts on a bridge that it does not guard.
bridge=%s
pins=%s
handshakes=%s
real() {
	%s "$@"
}
end() {
	for word do
		shift
		[ "$word" != start ] || word=kill
		set -- "$@" "$word"
	done
	real "$@" KILL >/dev/null 2>&1 && sleep 0.2
}
begin() {
	for word do
		shift
		if [ "$word" = start ] && [ -n "$image" ]; then
			set -- "$@" restore --detach "--image-path=$image"
		else
			set -- "$@" "$word"
		fi
	done
	real "$@"
}
refuse() {
	why=$1
	shift
	echo "$why" >&2
	printf '{"level":"error","msg":"%%s"}\n' "$why" >>"$log"
	[ "$verb" != start ] || end "$@"
	exit 1
}
log=/dev/null
last=
verb=
for word do
	[ "$last" != --log ] || log=$word
	last=$word
	case $word in
	create | run | restore | start | resume)
		verb=$word
		index=
		{ read -r index <"/sys/class/net/$bridge/ifindex"; } 2>/dev/null
		if [ -z "$index" ] || ! [ -e "$pins/bridge-$index" ]; then
			refuse "` + unguarded + ` $bridge: start it with ` + "\\`sallyport up\\`" + `" "$@"
		fi
		break
		;;
	esac
done
[ "$verb" = start ] || exec %s "$@"
for id do :; done
image=
if [ -f "$handshakes/$id" ]; then
	{
		flock 9 && read -r image <&9 && [ -r "$image/checkpoint.img" ] &&
			command exec 8>>/proc/self/fd/9 && echo begun >&8 || image=
	} 9<"$handshakes/$id"
	[ -n "$image" ] || refuse "the sandbox's memory was not filled in" "$@"
	cd /
fi
begin "$@" 8>&- && exit
status=$?
said=$(sed -n '$s/.*{"msg":"//p' "$log" 8>&-)
end "$@" 8>&-
[ -n "$image" ] || exit $status
case "$status $said" in
*"urpc method"*) ;;
"128 starting container: restoring container "* | "128 starting container: setting up network: "* | \
"128 starting container: connecting to control server "* | "128 starting container: cannot restore container "*)
	echo spared >&8
	;;
esac
exit $status
`

// unguarded begins the message of a start shim that refuses a start.
const unguarded = "sallyport is not guarding"

// writeStartShim writes the script name into dir, so that it runs the real runtime with
// flags. Scripts are replaced whole: a running engine picks a new one up.
func writeStartShim(dir, name, bridge, pins, handshakes, real string, flags ...string) error {
	words := []string{quote(real)}
	for _, f := range flags {
		words = append(words, quote(f))
	}
	run := strings.Join(words, " ")
	script := fmt.Sprintf(startShimScript, quote(bridge), quote(pins), quote(handshakes), run, run)
	_, err := replace(filepath.Join(dir, name), []byte(script), 0o755)
	return err
}

// quote makes one word of s for the shell.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// replace writes a file in one step and says whether its content changed.
func replace(path string, content []byte, mode os.FileMode) (bool, error) {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(content) {
		return false, os.Chmod(path, mode)
	}
	err := durable.WriteFile(path, content, mode)
	return err == nil, err
}
