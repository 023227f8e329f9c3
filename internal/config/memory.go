package config

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/internal/hostname"
	"sallyport/policy"
)

// Memory configures the memories of sandboxes.
type Memory struct {
	// Trusted are destinations from which what a sandbox learns is trusted: host names,
	// or *.example.com for those below one. Text that is written after contact with any other
	// is shown as untrusted. Default: none. Reloads; the other keys of memory need a restart.
	// Example: [api.openai.com, "*.internal.example"]
	Trusted []string `yaml:"trusted"`
	// History is how much of earlier contents is kept of each memory, from 1MiB.
	// Default: 256MiB.
	// Example: 256MiB
	History policy.Size `yaml:"history"`
	// Stores are folders that several sandboxes share, each a disk of its own, at
	// /stores/NAME in sandboxes that are made while the configuration has them.
	// Example: [{name: team, sandboxes: {tags: {team: support}}}]
	Stores []Store `yaml:"stores"`
	// Client is the user of the explicit proxy as whom the daemon asks the models below,
	// so that rules decide, and inject the credential, as for a sandbox. Needs proxy.
	// Example: memory
	Client string `yaml:"client"`
	// TokenFile holds its token, as `sallyport client add` shows it. Required with client.
	// Example: memory.token
	TokenFile string `yaml:"tokenFile"`
	// Embeddings is a model by which search finds what means the same in other words.
	// Default: search is by words.
	// Example: {url: "https://api.openai.com/v1/embeddings", model: text-embedding-3-small}
	Embeddings Model `yaml:"embeddings"`
	// Summaries is a model that writes summaries when a memory is compacted. Default:
	// sentences are chosen from the entries.
	// Example: {url: "https://api.openai.com/v1/chat/completions", model: gpt-5-mini}
	Summaries Model `yaml:"summaries"`
}

// Store is a folder that several sandboxes share.
type Store struct {
	// Name is the last part of its path: up to 32 lower-case letters, digits and dashes.
	// Required.
	// Example: team
	Name string `yaml:"name"`
	// Sandboxes selects those that have it, when they are made. Required.
	// Example: {tags: {team: support}}
	Sandboxes policy.Selector `yaml:"sandboxes"`
	// Writers selects those of them that may write to it. Default: none of them.
	// Example: {names: [librarian]}
	Writers policy.Selector `yaml:"writers"`
	// Size is that of its disk, from 64MiB, and is of a new one only. Default: 1GiB.
	// Example: 1GiB
	Size policy.Size `yaml:"size"`
}

// Model is a model behind an API like OpenAI's.
type Model struct {
	// URL is that of the requests. Required.
	// Example: https://api.openai.com/v1/embeddings
	URL string `yaml:"url"`
	// Model is its name. Required.
	// Example: text-embedding-3-small
	Model string `yaml:"model"`
}

// Trusts reports whether what is learned from a host is trusted.
func (m Memory) Trusts(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.ContainsFunc(m.Trusted, func(pattern string) bool {
		if below, ok := strings.CutPrefix(pattern, "*"); ok {
			return strings.HasSuffix(host, below) && len(host) > len(below)
		}
		return host == pattern
	})
}

func (v *validator) memory(c *Config) {
	m := c.Memory
	if m.History != 0 && m.History < 1<<20 {
		v.fail("memory.history", fmt.Sprintf("%v is less than 1MiB", m.History), "write a size as 256MiB, or leave it out for that")
	}
	for i, pattern := range m.Trusted {
		if !hostname.Valid(strings.TrimPrefix(pattern, "*.")) || pattern != strings.ToLower(pattern) {
			v.fail(fmt.Sprintf("memory.trusted[%d]", i), fmt.Sprintf("%q is no host name", pattern), "write one in lower case, as api.example.com, or *.example.com for those below")
		}
	}
	v.stores(m.Stores)
	models := false
	for key, model := range map[string]Model{"memory.embeddings": m.Embeddings, "memory.summaries": m.Summaries} {
		if model == (Model{}) {
			continue
		}
		models = true
		if u, err := hostname.ParseURL(model.URL); err != nil || u.Scheme != "https" || u.User != nil {
			v.fail(key+".url", fmt.Sprintf("%q is not the URL of a model", model.URL), "write it as https://api.example.com/v1/embeddings; a credential is injected by a rule of egressAuth")
		}
		if model.Model == "" {
			v.fail(key+".model", "is missing", "write the model's name")
		}
	}
	switch {
	case models && m.Client == "":
		v.fail("memory.client", "is missing, and the models are asked through the gateway", "run `sallyport client add memory`, and write its name here")
	case m.Client != "" && m.TokenFile == "":
		v.fail("memory.tokenFile", "is missing", "write the path of a file with the token that `sallyport client add` showed")
	case m.Client != "" && c.Proxy.Listen == "":
		v.fail("proxy.listen", "is missing, and memory.client is a user of the explicit proxy", "write proxy: {listen: \"127.0.0.1:3128\"}")
	}
}

func (v *validator) stores(list []Store) {
	seen := map[string]bool{}
	for i, s := range list {
		at := fmt.Sprintf("memory.stores[%d]", i)
		switch {
		case !shortName.MatchString(s.Name):
			v.fail(at+".name", fmt.Sprintf("%q is no name of a store", s.Name), "write up to 32 lower-case letters, digits and dashes")
		case seen[s.Name]:
			v.fail(at+".name", fmt.Sprintf("there are two stores %s", s.Name), "give each a name of its own")
		}
		seen[s.Name] = true
		if len(s.Sandboxes.Names)+len(s.Sandboxes.Tags) == 0 {
			v.fail(at+".sandboxes", "is missing, and every sandbox would have the store", "select sandboxes by names or tags")
		}
		if s.Size != 0 && s.Size < 64<<20 {
			v.fail(at+".size", fmt.Sprintf("%v is less than 64MiB", s.Size), "write a size as 1GiB, or leave it out for that")
		}
	}
}

// For returns how a sandbox of a name and tags has the store: not at all, to read, to write.
func (s Store) For(name string, tags map[string]string) (has, writes bool) {
	has = s.Sandboxes.Picks(name, tags)
	named := len(s.Writers.Names)+len(s.Writers.Tags) > 0 // the zero Selector picks all
	return has, has && named && s.Writers.Picks(name, tags)
}
