package contender

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var libexecdir = regexp.MustCompile(`'--libexecdir=([^']*)'`)

// findSquid looks for a squid that can end TLS: of Debian's packages
// squid-openssl can, squid cannot.
func findSquid(ctx context.Context) error {
	_, err := squidHelper(ctx)
	return err
}

// squidHelper is the path of the program that makes squid's certificates.
func squidHelper(ctx context.Context) (string, error) {
	path, err := exec.LookPath("squid")
	if err != nil {
		return "", errors.New("not installed")
	}
	about, err := exec.CommandContext(ctx, path, "-v").Output()
	switch {
	case err != nil:
		return "", fmt.Errorf("squid -v: %w", err)
	case !bytes.Contains(about, []byte("--with-openssl")) || !bytes.Contains(about, []byte("--enable-ssl-crtd")):
		return "", errors.New("installed without ssl-bump (Debian has it in squid-openssl)")
	}
	dir := libexecdir.FindSubmatch(about)
	if dir == nil {
		return "", errors.New("squid -v does not say where its helpers are")
	}
	helper := filepath.Join(cmp.Or(os.Getenv("SQUID_HELPERS"), strings.ReplaceAll(string(dir[1]), "${prefix}", "/usr")), "security_file_certgen")
	if _, err := os.Stat(helper); err != nil {
		return "", fmt.Errorf("its helper for certificates: %w", err)
	}
	return helper, nil
}

// startSquid starts it with ssl-bump of everything, as its documentation sets it
// up, one process; nothing is cached or logged, and one header is set.
func startSquid(ctx context.Context, o Options) (*exec.Cmd, string, error) {
	helper, err := squidHelper(ctx)
	if err != nil {
		return nil, "", err
	}
	address, err := vacant()
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(o.Dir, "squid")
	if err := os.Mkdir(dir, 0o777); err != nil {
		return nil, "", err
	}
	if err := os.Chmod(dir, 0o777); err != nil { // its helper, which is nobody, writes there
		return nil, "", err
	}
	key := filepath.Join(dir, "authority.pem")
	if err := authority(o, "squid", key); err != nil {
		return nil, "", err
	}
	certificates := filepath.Join(dir, "certificates")
	if said, err := exec.CommandContext(ctx, helper, "-c", "-s", certificates, "-M", "4MB").CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("making squid's store of certificates: %w: %s", err, said)
	}
	if err := chownAll(certificates, squidUser); err != nil {
		return nil, "", err
	}
	conf := filepath.Join(dir, "squid.conf")
	text := strings.NewReplacer("ADDRESS", address, "AUTHORITY", key, "HELPER", helper, "CERTIFICATES", certificates,
		"ROOTS", filepath.Join(o.Dir, "upstream.pem"), "SECRET", o.Secret, "LOG", filepath.Join(dir, "cache.log"),
		"DIR", dir, "USER", squidUser).Replace(squidConf)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, "", err
	}
	return start(ctx, o, "squid", address, exec.CommandContext(ctx, "squid", "-N", "-f", conf))
}

// squidUser is who squid becomes when root starts it, and has to be somebody.
const squidUser = "proxy"

const squidConf = `http_port ADDRESS ssl-bump tls-cert=AUTHORITY generate-host-certificates=on dynamic_cert_mem_cache_size=4MB
sslcrtd_program HELPER -s CERTIFICATES -M 4MB
sslcrtd_children 2 startup=1 idle=1
ssl_bump bump all
tls_outgoing_options cafile=ROOTS
http_access allow localhost
http_access deny all
request_header_add Authorization "Bearer SECRET" all
cache deny all
cache_mem 8 MB
access_log none
cache_log LOG
cache_store_log none
pid_filename none
netdb_filename none
coredump_dir DIR
cache_effective_user USER
shutdown_lifetime 0 seconds
max_filedescriptors 32768
`

// chownAll gives a folder to a user, if there is one of that name and this is
// root; else squid stays who starts it.
func chownAll(dir, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, -1)
	})
}
