// Package cli is what the commands of sallyport have in common: the flags of all of them,
// how they ask the daemon and print what it answers, and their exit status.
package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/sandbox/client"
)

// Globals are the flags that every command has.
type Globals struct {
	Location config.Location // of the configuration
	Output   string
	remote   client.Remote // of another host's daemon
}

// Root is the command line: its flags, which the commands are given, and the commands.
func Root(version string, commands ...func(*Globals) *cobra.Command) *cobra.Command {
	g := &Globals{}
	root := Group("sallyport", "The guarded way out for AI-agent sandboxes")
	root.Long = "Sallyport gives an AI agent a persistent sandbox and is the only way out of it:\nit decides every request by policy, injects the credentials, and writes it down."
	root.Version, root.SilenceErrors, root.SilenceUsage = version, true, true
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&g.Location.File, "config", "", "configuration file (default $SALLYPORT_CONFIG, else /etc/sallyport/sallyport.yaml where there is one)")
	f.StringVar(&g.Location.DataDir, "data-dir", "", "folder of all persistent data (default the configuration's)")
	f.StringVarP(&g.Output, "output", "o", "text", "text or json")
	f.StringVar(&g.remote.URL, "host", "", "https://HOST:PORT of a daemon elsewhere (default $SALLYPORT_HOST, else the one on this host)")
	f.StringVar(&g.remote.KeyFile, "key-file", "", "file with the API key for --host (default $SALLYPORT_KEY_FILE)")
	f.StringVar(&g.remote.Fingerprint, "fingerprint", "", "sha256:HEX of the certificate of --host (default $SALLYPORT_FINGERPRINT, else the system's certificate authorities are trusted)")
	for _, c := range commands {
		root.AddCommand(c(g))
	}
	return root
}

// Config reads the configuration; flags win over it. One that is wrong comes with
// its error, as far as it could be read.
func (g *Globals) Config() (*config.Config, error) { return g.ConfigFor("text", "json") }

// ConfigFor is Config for a command with other formats of output.
func (g *Globals) ConfigFor(formats ...string) (*config.Config, error) {
	if !slices.Contains(formats, g.Output) {
		last := len(formats) - 1
		return nil, Usagef("--output %q: use %s or %s", g.Output, strings.Join(formats[:last], ", "), formats[last])
	}
	return g.Location.Load()
}

// Daemon returns a client of the daemon that the configuration describes.
func (g *Globals) Daemon() (*client.Client, error) {
	cfg, err := g.Config()
	if cfg == nil {
		return nil, err
	}
	if r := g.elsewhere(cfg); r.URL != "" {
		return client.Dial(r)
	}
	// A daemon that runs may be asked why it refuses what is written there now.
	if err != nil {
		cfg.RunDir = config.RunDir(g.Location.Path())
		if _, serr := os.Stat(cfg.Socket()); serr != nil {
			return nil, err
		}
	}
	return client.Unix(cfg.Socket()), nil
}

// elsewhere is the daemon of another host, by flags, the environment or the
// configuration. A host that is named alone has no fingerprint or key of another
// one's.
func (g *Globals) elsewhere(cfg *config.Config) client.Remote {
	r := client.Remote{
		URL:         cmp.Or(g.remote.URL, os.Getenv("SALLYPORT_HOST")),
		KeyFile:     cmp.Or(g.remote.KeyFile, os.Getenv("SALLYPORT_KEY_FILE")),
		Fingerprint: cmp.Or(g.remote.Fingerprint, os.Getenv("SALLYPORT_FINGERPRINT")),
	}
	if c := cfg.Remote; r.URL == "" || r.URL == c.Host {
		r.URL, r.KeyFile, r.Fingerprint = c.Host, cmp.Or(r.KeyFile, c.KeyFile), cmp.Or(r.Fingerprint, c.Fingerprint)
	}
	return r
}

// Print writes v as JSON, or calls text, as the user asked.
func (g *Globals) Print(cmd *cobra.Command, v any, text func(io.Writer)) error {
	w := cmd.OutOrStdout()
	if g.Output == "json" {
		if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.IsNil() {
			v = []any{} // none is a list too, and not null
		}
		e := terminal.JSON(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	text(w)
	return nil
}

// PrintLine is Print for one of many, as long as they come: each is a line.
func (g *Globals) PrintLine(cmd *cobra.Command, v any, text func() string) error {
	if g.Output == "json" {
		return terminal.JSON(cmd.OutOrStdout()).Encode(v)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), text())
	return err
}

// Banner says above a listing what is in observe mode. It goes to the error stream,
// where it is no part of what a program reads.
func (g *Globals) Banner(cmd *cobra.Command, d *client.Client) {
	if s, err := api.GetStatus.Do(cmd.Context(), d, client.None{}); err == nil { // or the listing itself says why not
		Observing(cmd.ErrOrStderr(), s.Observing)
	}
}

// Observing writes what is in observe mode, a line each.
func Observing(w io.Writer, list []policy.Lifting) {
	for _, l := range list {
		fmt.Fprintf(w, "OBSERVE MODE: what the policy denies is carried: %s\n", l)
	}
}
