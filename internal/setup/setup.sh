#!/bin/sh
# Installs and makes what Sallyport needs on a Debian machine: see usage.
#
# Each step looks first and does nothing when there is nothing to do, and what
# it makes appears whole or not at all.
set -eu

usage() {
	cat <<-END
		usage: setup.sh demo|test|kubernetes|generate

		  demo      what it takes to run: Docker Engine (installed, not started: Sallyport
		            runs an instance of its own), gVisor, a base image
		  test      also what the tests use
		  kubernetes  beside what demo makes, what a cluster of the tests runs: Kubernetes,
		            containerd, CNI plugins and gVisor's shim (ten to twenty minutes, once)
		  generate  what it takes to generate code: a C compiler for BPF

		What is made goes to \${XDG_CACHE_HOME:-\$HOME/.cache}/sallyport.
	END
}

say() { printf 'setup: %s\n' "$*"; }
die() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sallyport
scratch=
beside= # the groups of processes that build beside this one

# An interrupted run leaves no half-made file, and no build that goes on.
finish() {
	status=$?
	trap - EXIT HUP INT TERM
	for group in $beside; do
		kill -- "-$group" 2>/dev/null || true
	done
	restore_policy
	# Never into what may still be mounted below it.
	[ -z "$scratch" ] || rm -rf --one-file-system "$scratch"
	exit "$status"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

need_go=1.26

check_machine() {
	[ "$(id -u)" = 0 ] || die "needs root: run it with sudo, or as root"
	[ "$(uname -s)" = Linux ] || die "needs Linux: this is $(uname -s)"
	command -v apt-get >/dev/null ||
		die "needs Debian or a relative (apt-get is not here): install by hand what $here/setup.sh lists"
	PATH=$PATH:/usr/local/go/bin
	command -v go >/dev/null ||
		die "needs Go $need_go or later: there is none on PATH. Get it from go.dev/dl, unpack it in /usr/local and add /usr/local/go/bin to PATH"
	# The toolchain that would build here, whatever a go.mod asks it to fetch.
	have=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
	version=${have#go}
	major=${version%%.*}
	rest=${version#*.}
	minor=${rest%%[!0-9]*}
	case $major in '' | *[!0-9]*) die "cannot tell the version of Go from \"$have\"" ;; esac
	if [ "$major" -lt "${need_go%.*}" ] || { [ "$major" -eq "${need_go%.*}" ] && [ "${minor:-0}" -lt "${need_go#*.}" ]; }; then
		die "needs Go $need_go or later: $(command -v go) is $version. Get it from go.dev/dl, unpack it in /usr/local and add /usr/local/go/bin to PATH"
	fi
}

installed() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Packages to install for a purpose. A program that is there by other means,
# as Docker's own packages bring dockerd, is not installed a second time.
wanted() {
	for package in ca-certificates git iproute2 mmdebstrap; do
		installed "$package" || echo "$package"
	done
	[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
	PATH=$PATH:/usr/sbin:/sbin command -v dockerd >/dev/null || echo docker.io
	# Docker before 23 starts no container where the kernel has AppArmor and nobody loads profiles.
	if grep -qs Y /sys/module/apparmor/parameters/enabled; then
		PATH=$PATH:/usr/sbin:/sbin command -v apparmor_parser >/dev/null || echo apparmor
	fi
	case $1 in
	test)
		# tinyproxy-bin is tinyproxy without the service that listens to everybody, and
		# redis-tools has Redis's program without its service.
		for package in curl default-jdk-headless gcc libc6-dev make microsocks nftables nodejs openssh-client openssl procps python3 redis-tools squid strace tcpdump tinyproxy-bin; do
			installed "$package" || echo "$package"
		done
		set -- "$1" /usr/lib/postgresql/*/bin/initdb
		[ -e "$2" ] || echo postgresql
		[ -e /usr/sbin/sshd ] || echo openssh-server
		command -v npm >/dev/null || echo npm # Node's own packages bring it
		;;
	esac
	case $1 in
	kubernetes)
		for package in curl procps tcpdump; do
			installed "$package" || echo "$package"
		done
		;;
	esac
	case $1 in
	test | generate)
		for package in clang llvm libbpf-dev; do
			installed "$package" || echo "$package"
		done
		;;
	esac
}

# apt-get without questions, and without starting what it installs: invoke-rc.d
# and deb-systemd-invoke ask this program whether they may. A machine that has
# a policy of its own gets it back; services that run are not restarted.
apt() {
	policy=/usr/sbin/policy-rc.d
	if [ -e "$policy" ] || [ -L "$policy" ]; then
		mv "$policy" "$policy.sallyport"
	fi
	printf '#!/bin/sh\n# sallyport: nothing starts while packages are installed\nexit 101\n' >"$policy"
	chmod 755 "$policy"
	result=0
	DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" >>"$scratch/apt.log" 2>&1 || result=$?
	restore_policy
	return "$result"
}

restore_policy() {
	policy=/usr/sbin/policy-rc.d
	if [ -e "$policy.sallyport" ] || [ -L "$policy.sallyport" ]; then
		mv -f "$policy.sallyport" "$policy"
	elif grep -qs '^# sallyport:' "$policy"; then
		rm -f "$policy"
	fi
}

install_packages() {
	missing=$(wanted "$1" | tr '\n' ' ')
	if [ -z "$missing" ]; then
		say "packages: all here"
		return
	fi
	say "packages: installing $missing"
	units=
	services=
	case " $missing" in *" docker.io "*)
		units="docker.service docker.socket"
		services=docker
		installed containerd || units="$units containerd.service"
		;;
	esac
	case " $missing" in *" postgresql "*)
		units="$units postgresql.service"
		services="$services postgresql"
		;;
	esac
	case " $missing" in *" squid "*)
		units="$units squid.service"
		services="$services squid"
		if ! installed logrotate; then units="$units logrotate.timer"; fi
		;;
	esac
	case " $missing" in *" openssh-server "*)
		units="$units ssh.service"
		services="$services ssh"
		;;
	esac
	# shellcheck disable=SC2086 # a list of words
	apt install -y --no-install-recommends $missing || {
		apt update && apt install -y --no-install-recommends $missing
	} || {
		tail -n 20 "$scratch/apt.log" >&2
		die "cannot install $missing: mend what apt-get says above and run this again"
	}
	# What nobody asked for is not to start with the machine either.
	# A minimal system has no systemctl, but these links all the same.
	for unit in $units; do
		rm -f /etc/systemd/system/*.wants/"$unit"
	done
	for service in $services; do
		command -v update-rc.d >/dev/null || break
		update-rc.d "$service" disable >>"$scratch/apt.log" 2>&1 || say "packages: could not disable $service at boot"
	done
}

# Makes the link of that name in the cache lead to what is current.
point() {
	[ "$(readlink "$cache/$1")" != "$2" ] || return 0
	ln -s "$2" "$scratch/$1.link"
	mv -T "$scratch/$1.link" "$cache/$1"
}

# Old versions stay: a memory checkpoint restores on the one that wrote it.
build_runsc() {
	module=$here/gvisor
	version=$(cd "$module" && go list -m -f '{{.Version}}' gvisor.dev/gvisor) ||
		die "cannot get gVisor's module: mend what go says above and run this again"
	out=$cache/runsc-$version
	if [ -x "$out/runsc" ]; then
		point runsc "runsc-$version/runsc"
		say "gVisor: $version is here"
		return
	fi
	say "gVisor: building $version (a minute or two)"
	mkdir "$scratch/runsc"
	(cd "$module" && CGO_ENABLED=0 go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" \
		-o "$scratch/runsc/runsc" gvisor.dev/gvisor/runsc) ||
		die "cannot build gVisor: mend what go says above and run this again"
	"$scratch/runsc/runsc" --version >"$scratch/runsc/version" || die "the gVisor that was built does not run"
	rm -rf "$out"
	mv "$scratch/runsc" "$out"
	point runsc "runsc-$version/runsc"
}

suite=bookworm
base=ca-certificates,curl,git,iproute2,procps,python3,python3-pip,python3-venv,wget
# The languages that trust roots in ways of their own, for the tests.
runtimes=ca-certificates,default-jdk-headless,nodejs
browsers=ca-certificates,chromium,chromium-headless-shell

# One line of apt's format for each part of the suite that this machine itself
# installs from; nothing when it is another release, and mmdebstrap then knows
# where to go. A password in an address is for this machine only.
sources() {
	# shellcheck disable=SC2016 # apt-get fills it in
	apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI) $(COMPONENT)' 'Created-By: Packages' |
		while read -r origin release uri component; do
			[ "$origin" = Debian ] || continue
			case $release in
			"$suite" | "$suite-updates" | "$suite-security")
				echo "deb $uri $release $component"
				;;
			esac
		done
}

# build_image NAME PACKAGES makes NAME.tar in the cache.
build_image() {
	name=$1
	recipe=$({
		echo "$suite $2 2"
		sed -n '/^build_image/,/^}/p' "$here/setup.sh"
	} | sha256sum | cut -c1-16)
	out=$cache/$name-$suite-$recipe
	if [ -e "$out/$name.tar" ]; then
		point "$name.tar" "$name-$suite-$recipe/$name.tar"
		say "$name image: $recipe is here"
		return
	fi
	say "$name image: making it from Debian packages (a minute at most)"
	sources >"$scratch/sources"
	if [ ! -s "$scratch/sources" ]; then
		apt update || true
		sources >"$scratch/sources"
	fi
	# Java's packages want the folder of manuals, though there are none.
	# shellcheck disable=SC2016 # mmdebstrap's shells expand the hooks
	set -- --variant=minbase --include="$2" \
		--essential-hook='mkdir -p "$1"/usr/share/man/man1' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--customize-hook='find "$1"/etc/apt/sources.list* -type f -exec sed -i "s#://[^/@]*@#://#" {} +' \
		--customize-hook='chroot "$1" dpkg-query -W >"$1"/etc/sallyport-packages' \
		--customize-hook='rm -rf "$1"/var/log/*.log "$1"/var/log/apt "$1"/var/cache/debconf/*-old "$1"/etc/resolv.conf "$1"/etc/hostname' \
		--format=tar "$suite" "$scratch/$name.tar"
	[ ! -s "$scratch/sources" ] || set -- "$@" "$scratch/sources"
	# The package itself, for a test that installs it again without a network.
	# shellcheck disable=SC2016 # as above
	[ "$name" != runtimes ] || set -- --customize-hook='cd "$1"/root && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq download ca-certificates' "$@"
	TMPDIR=$scratch mmdebstrap --quiet "$@" >"$scratch/mmdebstrap.log" 2>&1 || {
		tail -n 20 "$scratch/mmdebstrap.log" >&2
		die "cannot make the $name image: mend what mmdebstrap says above and run this again"
	}
	mkdir "$scratch/$name"
	tar -xOf "$scratch/$name.tar" ./etc/sallyport-packages >"$scratch/$name/packages"
	mv "$scratch/$name.tar" "$scratch/$name/$name.tar"
	rm -rf "$out"
	mv "$scratch/$name" "$out"
	point "$name.tar" "$name-$suite-$recipe/$name.tar"
}

# Images as an engine keeps them, for the engines of tests to share instead of each
# importing its own.
build_engine() {
	version=$(PATH=$PATH:/usr/sbin:/sbin dockerd --version)
	recipe=$({
		echo "$version"
		for image in base runtimes browsers; do readlink "$cache/$image.tar"; done
		cat "$here/../test/env/template.go"
	} | sha256sum | cut -c1-16)
	out=$cache/engine-$recipe
	if [ -d "$out" ]; then
		point engine "engine-$recipe"
		say "engine of tests: $recipe is here"
		return
	fi
	say "engine of tests: importing the images (a minute at most)"
	(cd "$here/../.." && mkdir -p bin && for made in runsc base.tar runtimes.tar browsers.tar; do ln -sfn "$cache/$made" bin/$made; done &&
		go mod download && CGO_ENABLED=0 go run ./internal/test/template "$scratch/engine") || # it builds where no network is
		die "cannot import the images: mend what is said above and run this again"
	mv "$scratch/engine" "$out"
	point engine "engine-$recipe"
}

# Syslog servers that the tests send to. They are unpacked and not installed: each would
# take the place of the machine's own.
unpack_syslog() {
	if [ -d "$cache/syslog" ]; then
		say "syslog servers: here"
		return
	fi
	say "syslog servers: unpacking rsyslog and syslog-ng"
	mkdir -p "$scratch/syslog" "$scratch/debs"
	set -- rsyslog rsyslog-openssl rsyslog-elasticsearch libestr0 libfastjson4 liblognorm5 \
		syslog-ng-core libivykis0 libnet1 libjson-c5 libpcre3 libwrap0
	(cd "$scratch/debs" && apt-get -qq download "$@" >>"$scratch/apt.log" 2>&1) || {
		# The machine's lists of packages may be missing, or too old.
		apt update && (cd "$scratch/debs" && apt-get -qq download "$@" >>"$scratch/apt.log" 2>&1)
	} || {
		tail -n 20 "$scratch/apt.log" >&2
		die "cannot get the syslog servers: mend what apt-get says above and run this again"
	}
	for deb in "$scratch/debs"/*.deb; do
		dpkg-deb -x "$deb" "$scratch/syslog"
	done
	mv "$scratch/syslog" "$cache/syslog"
}

# The npm package that the memory tool is compared with, as its lock file has it.
install_memory_tool() {
	lock=$here/../../memory/tool/testdata
	recipe=$(cat "$lock/package.json" "$lock/package-lock.json" | sha256sum | cut -c1-16)
	out=$cache/memory-tool-$recipe
	if [ -d "$out" ]; then
		say "memory tool: $recipe is here"
		return
	fi
	say "memory tool: installing the npm package that ours is compared with"
	mkdir "$scratch/memory-tool"
	cp "$lock/package.json" "$lock/package-lock.json" "$scratch/memory-tool"
	(cd "$scratch/memory-tool" && npm ci --ignore-scripts --no-audit --no-fund >"$scratch/npm.log" 2>&1) || {
		tail -n 20 "$scratch/npm.log" >&2
		die "cannot install the npm package: mend what npm says above and run this again"
	}
	mv "$scratch/memory-tool" "$out"
}

# What an interrupted run could not take away itself, as when it was killed.
sweep() {
	for old in "$cache"/.setup.*; do
		[ -d "$old" ] || continue
		pid=${old##*/.setup.}
		kill -0 "${pid%%.*}" 2>/dev/null || rm -rf --one-file-system "$old"
	done
}

case ${1-} in
demo | test | kubernetes | generate) ;;
images) ;; # of this program: what it builds beside the rest
-h | --help)
	usage
	exit
	;;
*)
	usage >&2
	exit 2
	;;
esac

check_machine
mkdir -p "$cache"
sweep
scratch=$(mktemp -d "$cache/.setup.$$.XXXXXX")
if [ "$1" = images ]; then
	build_image runtimes "$runtimes"
	build_image browsers "$browsers"
	exit
fi
restore_policy # of a run that was killed
install_packages "$1"
if [ "$1" = test ]; then
	say "Vault core: building it beside the rest, unless it is here (two to three minutes)"
	setsid "$here/../../examples/vault/build.sh" >/dev/null 2>"$scratch/vault.log" &
	vault=$!
	setsid "$here/setup.sh" images &
	images=$!
	beside="$vault $images"
fi
if [ "$1" != generate ]; then
	build_runsc
	build_image base "$base"
fi
if [ "$1" = kubernetes ]; then
	"$here/kubernetes/build.sh" >/dev/null || die "cannot build Kubernetes: mend what go says above and run this again"
	say "Kubernetes: here"
fi
if [ "$1" = test ]; then
	unpack_syslog
	install_memory_tool
	wait "$images" || exit 1 # it has said why
	build_engine
	wait "$vault" || {
		tail -n 20 "$scratch/vault.log" >&2
		die "cannot build the Vault core: mend what go says above and run this again"
	}
	beside=
fi
say "done"
