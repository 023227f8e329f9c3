#!/bin/sh
# Prints the authority of a cluster for a first try, as objects for kubectl: the root in the
# ClusterTrustBundle sallyport, and an intermediate below it, which all nodes share, in the
# Secret sallyport-ca. In earnest each node has an intermediate of its own, from cert-manager
# or Vault: docs/kubernetes.md.
#
# usage: ca.sh FOLDER | kubectl apply -f -
#
# FOLDER gets root.pem and root.key, which go to no node: keep the key off the cluster. A root
# that is in it is used again.
set -eu
umask 077
mkdir -p "${1:?usage: ca.sh FOLDER}"
cd "$1"

key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc"
usage="keyUsage=critical,keyCertSign,cRLSign"
if [ ! -e root.key ]; then
	# shellcheck disable=SC2086 # a list of options
	openssl req -x509 $key -days 3650 -subj "/CN=Sallyport root" -keyout root.key -out root.pem \
		-addext "basicConstraints=critical,CA:TRUE" -addext "$usage" 2>/dev/null
fi
# Two more below: a sandbox's own authority, and its leaves.
# shellcheck disable=SC2086 # a list of options
openssl req -new $key -subj "/CN=Sallyport nodes" -keyout tls.key -out nodes.csr 2>/dev/null
printf 'basicConstraints=critical,CA:TRUE,pathlen:1\n%s\n' "$usage" |
	openssl x509 -req -in nodes.csr -CA root.pem -CAkey root.key -CAcreateserial -days 90 -extfile /dev/stdin -out tls.crt 2>/dev/null

indent() { sed "s/^/    /" "$1"; }
cat <<END
apiVersion: certificates.k8s.io/v1
kind: ClusterTrustBundle
metadata: {name: sallyport}
spec:
  trustBundle: |
$(indent root.pem)
---
apiVersion: v1
kind: Secret
metadata: {name: sallyport-ca, namespace: sallyport}
type: kubernetes.io/tls
stringData:
  tls.crt: |
$(indent tls.crt)
  tls.key: |
$(indent tls.key)
END
rm -f tls.key tls.crt nodes.csr
