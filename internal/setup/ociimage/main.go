// Command ociimage writes static programs and the roots of upstreams' certificates as an image, in
// a tar archive of OCI's image layout. `ctr -n k8s.io images import` puts it on a node, skopeo and
// crane into a registry.
//
// The same files make the same image, byte by byte.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path"
	"runtime"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("ociimage: ")
	out := flag.String("o", "", "`file` to write")
	name := flag.String("name", "", "full `name` of the image, with its tag")
	roots := flag.String("roots", "/etc/ssl/certs/ca-certificates.crt", "PEM `file` of the roots that upstreams' certificates are verified with")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: ociimage -o FILE -name NAME PROGRAM...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *out == "" || *name == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := save(*out, *name, *roots, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// save writes the archive, whole or not at all.
func save(out, name, roots string, programs []string) error {
	files := []entry{{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, text: []byte("root:x:0:0:root:/:/sbin/nologin\n")},
		{name: "etc/group", mode: 0o644, text: []byte("root:x:0:\n")},
		{name: "etc/ssl/", mode: 0o755}, {name: "etc/ssl/certs/", mode: 0o755},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755}, {name: "usr/local/", mode: 0o755}, {name: "usr/local/bin/", mode: 0o755},
	}
	text, err := os.ReadFile(roots)
	if err != nil {
		return err
	}
	files = append(files, entry{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: text})
	for _, program := range programs {
		text, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		files = append(files, entry{name: "usr/local/bin/" + path.Base(program), mode: 0o755, text: text})
	}
	image, err := layout(name, files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out+".new", image, 0o644); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}

// entry is a file, or a folder where the name ends in a slash.
type entry struct {
	name string
	mode int64
	text []byte
}

func writeTar(w io.Writer, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.text)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(e.text); err != nil {
			return err
		}
	}
	return t.Close()
}

// descriptor names a blob (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"` // bytes
	Annotations map[string]string `json:"annotations,omitempty"`
}

// layout returns the archive of an image with one layer (OCI image specification, image-layout.md).
func layout(name string, files []entry) ([]byte, error) {
	var plain, packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(writeTar(io.MultiWriter(&plain, z), files), z.Close()); err != nil {
		return nil, err
	}
	blobs := []entry{{name: "blobs/", mode: 0o755}, {name: "blobs/sha256/", mode: 0o755}}
	add := func(mediaType string, text []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(text))
		blobs = append(blobs, entry{name: "blobs/sha256/" + sum, mode: 0o644, text: text})
		return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(text)}
	}
	addJSON := func(mediaType string, v any) (descriptor, error) {
		text, err := json.Marshal(v)
		return add(mediaType, text), err
	}

	const oci = "application/vnd.oci.image."
	layer := add(oci+"layer.v1.tar+gzip", packed.Bytes())
	config, err := addJSON(oci+"config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/usr/local/bin"}, "Entrypoint": []string{"sallyport"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(plain.Bytes()))}},
	})
	if err != nil {
		return nil, err
	}
	const manifestType = oci + "manifest.v1+json"
	manifest, err := addJSON(manifestType, map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []descriptor{layer}})
	if err != nil {
		return nil, err
	}
	// The first name is containerd's, the second OCI's, which skopeo reads.
	manifest.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": []descriptor{manifest}})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = writeTar(&b, append(blobs,
		entry{name: "oci-layout", mode: 0o644, text: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		entry{name: "index.json", mode: 0o644, text: index}))
	return b.Bytes(), err
}
