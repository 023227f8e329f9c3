package trust

import (
	"archive/tar"
	"context"
	"encoding/json"
	"path"
	"strconv"
	"strings"
)

// Chromium trusts roots of its own, not the system's. Whole browsers read an
// administrator's policy; the headless shell that drivers as Playwright and
// Puppeteer start reads only the user's NSS database.

// browserPolicies are the folders of Chromium, Chrome, Chrome for Testing and
// Edge for an administrator's policies.
var browserPolicies = []string{
	"/etc/chromium/policies/managed",
	"/etc/opt/chrome/policies/managed",
	"/etc/opt/chrome_for_testing/policies/managed",
	"/etc/opt/edge/policies/managed",
}

// skeleton is what useradd copies into a new user's home folder.
const skeleton = "/etc/skel"

// browser plants the root for browsers. A database that the image brings stays
// as it is: it is returned for the log.
func (r *Root) browser(ctx context.Context, f Files) (left []string, err error) {
	policy, err := json.Marshal(map[string][][]byte{"CACertificates": {r.cert.Raw}})
	if err != nil {
		return nil, err
	}
	for _, dir := range browserPolicies {
		f.Put(path.Join(dir, "sallyport.json"), nil, policy)
	}
	database, err := newNSSDatabase(r.cert)
	if err != nil {
		return nil, err
	}
	homes, err := homes(ctx, f)
	if err != nil {
		return nil, err
	}
	for _, home := range homes {
		p := path.Join(home.dir, nssDatabase)
		there, err := f.Exists(ctx, p)
		if err != nil {
			return nil, err
		}
		if there {
			left = append(left, p)
			continue
		}
		f.Put(p, &tar.Header{Mode: 0o600, Uid: home.uid, Gid: home.gid}, database)
	}
	return left, nil
}

// home is a folder for the files of a user.
type home struct {
	dir      string
	uid, gid int
}

// homes are those of root and of the users that people are, which exist, and
// the one that new users begin with.
func homes(ctx context.Context, f Files) ([]home, error) {
	const (
		firstUser = 1000 // the first uid that is not a service's
		most      = 64
	)
	all := []home{{dir: skeleton}}
	_, _, passwd, err := f.Read(ctx, "/etc/passwd")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(passwd)) {
		entry := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(entry) < 6 || len(all) == most {
			continue
		}
		uid, err1 := strconv.ParseUint(entry[2], 10, 31)
		gid, err2 := strconv.ParseUint(entry[3], 10, 31)
		dir := path.Clean(entry[5])
		if err1 != nil || err2 != nil || !path.IsAbs(dir) || dir == "/" || uid != 0 && uid < firstUser {
			continue
		}
		there, mode, _, err := f.Stat(ctx, dir)
		if err != nil {
			return nil, err
		}
		if there && mode.IsDir() {
			all = append(all, home{dir, int(uid), int(gid)})
		}
	}
	return all, nil
}
