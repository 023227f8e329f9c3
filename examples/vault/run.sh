#!/bin/sh
# Runs the Vault server core of this folder with a secret in it, and writes what
# Sallyport needs to read that secret. It serves until it is interrupted.
set -eu

usage() {
	cat <<-END
		usage: run.sh DIRECTORY < FIELDS

		  DIRECTORY  is made, with mode 0700, and gets sallyport.yaml and what that names
		  FIELDS     the secret as a JSON object: {"token":"sk-example-0123456789"}

		The secret is secret/data/openai. VAULT_LISTEN changes the server's address, which is
		127.0.0.1:8200 by default and always on loopback.
	END
}

[ $# -eq 1 ] || {
	usage >&2
	exit 2
}
case $1 in -*)
	usage
	exit
	;;
esac
umask 077
mkdir -p "$1"
dir=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
listen=${VAULT_LISTEN:-127.0.0.1:8200}
bin=$("$here/build.sh")

server=
finish() {
	status=$?
	trap - EXIT HUP INT TERM
	[ -z "$server" ] || kill "$server" 2>/dev/null || true
	exit "$status"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

cat >"$dir/fields"
rm -f "$dir/ready.json"
"$bin" -listen "$listen" -tls "$dir" -put openai <"$dir/fields" >"$dir/ready.new" &
server=$!
until [ -s "$dir/ready.new" ]; do
	kill -0 "$server" 2>/dev/null || {
		wait "$server" || true
		server=
		echo "run.sh: Vault did not start: see above" >&2
		exit 1
	}
	sleep 0.1
done
rm -f "$dir/fields"

field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$dir/ready.new"; }
address=$(field address)
field secretID >"$dir/secret-id"
sed -e "s|https://127.0.0.1:8200|$address|" -e "s|put the roleID here|$(field roleID)|" \
	-e "s|/run/vault-example|$dir|" "$here/sallyport.yaml" >"$dir/sallyport.yaml"
mv "$dir/ready.new" "$dir/ready.json"

cat <<END
Vault listens on $address. Its root token and unseal key are in $dir/ready.json.
Now, in another terminal: sallyport up --config $dir/sallyport.yaml
END
wait "$server"
