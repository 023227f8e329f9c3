// Package standin stands in for the controller of kubernetes-sigs/agent-sandbox in tests. It
// is not that controller, which cannot be had as a module: it makes, owns and labels
// Sandboxes and their pods as that one does (API v1beta1, August 2026), in one step for
// each call, and reconciles nothing by itself. Its CustomResourceDefinitions check nothing.
package standin

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"sallyport/internal/test/kubernetes/kubeapi"
)

type object = kubeapi.Object

const (
	core       = "agents.x-k8s.io"
	extensions = "extensions.agents.x-k8s.io"
	version    = "v1beta1"

	// PoolLabel is on a pod of a warm pool until it is claimed.
	PoolLabel = core + "/warm-pool-sandbox"

	nameHash     = core + "/sandbox-name-hash"
	templateHash = core + "/sandbox-template-ref-hash"
	createdBy    = core + "/created-by"
	propagated   = core + "/propagated-labels"
)

// Controller makes the objects of one namespace.
type Controller struct {
	api       *kubeapi.Client
	namespace string
}

// New installs the CustomResourceDefinitions, unless they are there.
func New(ctx context.Context, api *kubeapi.Client, namespace string) (*Controller, error) {
	for _, kind := range []struct{ group, kind, plural string }{
		{core, "Sandbox", "sandboxes"}, {extensions, "SandboxTemplate", "sandboxtemplates"},
		{extensions, "SandboxWarmPool", "sandboxwarmpools"}, {extensions, "SandboxClaim", "sandboxclaims"},
	} {
		name := kind.plural + "." + kind.group
		_, err := api.Create(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": object{"name": name, "annotations": object{"api-approved.kubernetes.io": "unapproved, a stand-in of tests"}},
			"spec": object{"group": kind.group, "scope": "Namespaced",
				"names": object{"kind": kind.kind, "plural": kind.plural, "singular": strings.ToLower(kind.kind)},
				"versions": []object{{"name": version, "served": true, "storage": true,
					"schema": object{"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}},
		})
		var e *kubeapi.Error
		if errors.As(err, &e) && e.Code == http.StatusConflict {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	c := &Controller{api, namespace}
	// A kind is served a moment after its definition is there.
	for {
		errs := []error{}
		for _, path := range []string{c.path(core, "sandboxes"), c.path(extensions, "sandboxtemplates"), c.path(extensions, "sandboxwarmpools"), c.path(extensions, "sandboxclaims")} {
			_, err := api.Get(ctx, path)
			errs = append(errs, err)
		}
		err := errors.Join(errs...)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *Controller) path(group, plural string, name ...string) string {
	return strings.Join(append([]string{"/apis", group, version, "namespaces", c.namespace, plural}, name...), "/")
}

func (c *Controller) pod(name string) string {
	return "/api/v1/namespaces/" + c.namespace + "/pods/" + name
}

// hash is of a name in a label: FNV-1a of 32 bits, in hexadecimal.
func hash(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprintf("%08x", h.Sum32())
}

// owner is the reference of an object's controller.
func owner(of object) []object {
	return []object{{"apiVersion": of["apiVersion"], "kind": of["kind"], "name": kubeapi.At(of, "metadata", "name"),
		"uid": kubeapi.At(of, "metadata", "uid"), "controller": true, "blockOwnerDeletion": true}}
}

// Template makes a SandboxTemplate whose pods have these labels and this spec.
func (c *Controller) Template(ctx context.Context, name string, labels map[string]string, spec object) error {
	_, err := c.api.Create(ctx, c.path(extensions, "sandboxtemplates"), object{
		"apiVersion": extensions + "/" + version, "kind": "SandboxTemplate", "metadata": object{"name": name},
		"spec": object{"networkPolicyManagement": "Unmanaged", "podTemplate": object{"metadata": object{"labels": labels}, "spec": spec}},
	})
	return err
}

// Pool makes a SandboxWarmPool with its Sandboxes and their pods, and returns their names.
func (c *Controller) Pool(ctx context.Context, name, template string, replicas int) (sandboxes []string, err error) {
	made, err := c.api.Create(ctx, c.path(extensions, "sandboxwarmpools"), object{
		"apiVersion": extensions + "/" + version, "kind": "SandboxWarmPool", "metadata": object{"name": name},
		"spec": object{"replicas": replicas, "sandboxTemplateRef": object{"name": template}},
	})
	if err != nil {
		return nil, err
	}
	of, err := c.api.Get(ctx, c.path(extensions, "sandboxtemplates", template))
	if err != nil {
		return nil, err
	}
	for range replicas {
		blueprint := kubeapi.At(of, "spec", "podTemplate").(object)
		spec := maps.Clone(blueprint["spec"].(object))
		if spec["automountServiceAccountToken"] == nil {
			spec["automountServiceAccountToken"] = false
		}
		labels := maps.Clone(blueprint["metadata"].(object)["labels"].(object))
		labels[PoolLabel], labels[templateHash] = hash(name), hash(template)
		sandbox, err := c.api.Create(ctx, c.path(core, "sandboxes"), object{
			"apiVersion": core + "/" + version, "kind": "Sandbox",
			"metadata": object{"generateName": name + "-", "ownerReferences": owner(made),
				"annotations": object{core + "/sandbox-template-ref": template},
				"labels":      object{PoolLabel: hash(name), templateHash: hash(template), core + "/launch-type": "warm", createdBy: "controller"}},
			"spec": object{"operatingMode": "Running", "podTemplate": object{"metadata": object{"labels": labels}, "spec": spec}},
		})
		if err != nil {
			return nil, err
		}
		if err := c.makePod(ctx, sandbox); err != nil {
			return nil, err
		}
		sandboxes = append(sandboxes, kubeapi.At(sandbox, "metadata", "name").(string))
	}
	return sandboxes, nil
}

// Claim makes a SandboxClaim, which adopts the pool's Sandbox of this name. Its pod goes on
// and gets the claim's labels.
func (c *Controller) Claim(ctx context.Context, name, pool, sandbox string, labels map[string]string) error {
	claim, err := c.api.Create(ctx, c.path(extensions, "sandboxclaims"), object{
		"apiVersion": extensions + "/" + version, "kind": "SandboxClaim", "metadata": object{"name": name},
		"spec": object{"warmPoolRef": object{"name": pool}, "additionalPodMetadata": object{"labels": labels}},
	})
	if err != nil {
		return err
	}
	adopted, err := c.api.Get(ctx, c.path(core, "sandboxes", sandbox))
	if err != nil {
		return err
	}
	meta := adopted["metadata"].(object)
	meta["ownerReferences"] = owner(claim)
	uid := kubeapi.At(claim, "metadata", "uid")
	own := meta["labels"].(object)
	delete(own, PoolLabel)
	delete(own, createdBy)
	own[core+"/claim-uid"] = uid
	pods := kubeapi.At(adopted, "spec", "podTemplate", "metadata", "labels").(object)
	delete(pods, PoolLabel)
	pods[core+"/claim-uid"] = uid
	for key, value := range labels {
		pods[key] = value
	}
	if adopted, err = c.api.Replace(ctx, c.path(core, "sandboxes", sandbox), adopted); err != nil {
		return err
	}
	pod, err := c.api.Get(ctx, c.pod(sandbox))
	if err != nil {
		return err
	}
	shape := c.shape(adopted)
	for key := range kubeapi.At(pod, "metadata", "labels").(object) {
		if _, stays := shape.labels[key]; !stays {
			shape.labels[key] = nil // a merge patch's way to remove it
		}
	}
	_, err = c.api.Patch(ctx, c.pod(sandbox), kubeapi.MergePatch, object{"metadata": object{"labels": shape.labels, "annotations": shape.annotations}})
	return err
}

// Suspend deletes the pod of a Sandbox and waits until it is gone. The Sandbox stays.
func (c *Controller) Suspend(ctx context.Context, sandbox string) error {
	if _, err := c.mode(ctx, sandbox, "Suspended"); err != nil {
		return err
	}
	if err := c.api.Delete(ctx, c.pod(sandbox)); err != nil {
		return err
	}
	for {
		_, err := c.api.Get(ctx, c.pod(sandbox))
		var e *kubeapi.Error
		if errors.As(err, &e) && e.Code == http.StatusNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Resume makes the pod of a Sandbox, after Suspend or when its node is lost: another pod of
// the same name and owner.
func (c *Controller) Resume(ctx context.Context, sandbox string) error {
	s, err := c.mode(ctx, sandbox, "Running")
	if err != nil {
		return err
	}
	return c.makePod(ctx, s)
}

func (c *Controller) mode(ctx context.Context, sandbox, mode string) (object, error) {
	return c.api.Patch(ctx, c.path(core, "sandboxes", sandbox), kubeapi.MergePatch, object{"spec": object{"operatingMode": mode}})
}

// shape is what a Sandbox gives its pod.
type shape struct{ labels, annotations object }

// shape leaves out labels of the template that are the controller's own to set.
func (c *Controller) shape(sandbox object) shape {
	name := kubeapi.At(sandbox, "metadata", "name").(string)
	s := shape{object{nameHash: hash(name)}, object{}}
	var users []string
	template, _ := kubeapi.At(sandbox, "spec", "podTemplate", "metadata", "labels").(object)
	for key, value := range template {
		if domain, _, _ := strings.Cut(key, "/"); domain != core && domain != extensions {
			s.labels[key] = value
			users = append(users, key)
		}
	}
	own, _ := kubeapi.At(sandbox, "metadata", "labels").(object)
	for _, key := range []string{PoolLabel, templateHash, createdBy} {
		if own[key] != nil {
			s.labels[key] = own[key]
		}
	}
	if len(users) > 0 {
		slices.Sort(users)
		s.annotations[propagated] = strings.Join(users, ",")
	}
	return s
}

// makePod makes the pod that a Sandbox asks for: it has the Sandbox's name.
func (c *Controller) makePod(ctx context.Context, sandbox object) error {
	s := c.shape(sandbox)
	_, err := c.api.Create(ctx, strings.TrimSuffix(c.pod(""), "/"), object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": kubeapi.At(sandbox, "metadata", "name"), "labels": s.labels, "annotations": s.annotations, "ownerReferences": owner(sandbox)},
		"spec":     kubeapi.At(sandbox, "spec", "podTemplate", "spec"),
	})
	return err
}
