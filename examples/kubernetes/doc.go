// Package kubernetes is the example of Sallyport on Kubernetes: docs/kubernetes.md follows
// it. sallyport.yaml is the chart with its own values, and the namespace.
package kubernetes

//go:generate sh -c "$(render/build.sh) -chart chart -values plain.yaml -o sallyport.yaml -head 'Made from the chart by go generate: change that.'"
