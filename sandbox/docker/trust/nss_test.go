package trust

import (
	"crypto/sha1"
	"crypto/x509/pkix"
	"encoding/hex"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
)

// SQLite itself reads what is written, finds nothing wrong with it, and goes on
// writing.
func TestNSSDatabase(t *testing.T) {
	ca := newCertificate(t, pkix.Name{CommonName: "Sallyport test"})
	content, err := newNSSDatabase(ca)
	must.OK(t, err)
	file := filepath.Join(t.TempDir(), "cert9.db")
	must.OK(t, os.WriteFile(file, content, 0o600))
	const script = `
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(*db.execute("PRAGMA integrity_check").fetchone())
for row in db.execute("SELECT id, a0, a11, a101, ace536358, ace5363b4, ace5363b5 FROM nssPublic"):
    print(*(v.hex() if isinstance(v, bytes) else v for v in row))
db.execute("INSERT INTO nssPublic (id, a3) VALUES (797437795, x'00')")
db.execute("CREATE INDEX label ON nssPublic (a3)")
db.commit()
print(*db.execute("SELECT count(*) FROM nssPublic").fetchone(), *db.execute("PRAGMA integrity_check").fetchone())`
	out, err := exec.Command("python3", "-c", script, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	sum := sha1.Sum(ca.Raw)
	if len(lines) != 4 || !strings.Contains(lines[2], hex.EncodeToString(sum[:])) {
		t.Fatalf("got\n%s\nwant the trust of %x in the second row", out, sum)
	}
	got := append(lines[:1:1], strings.Join(strings.Fields(lines[1])[:3], " "), strings.Join(strings.Fields(lines[2])[4:5], " "), lines[3])
	want := []string{"ok", "1 00000001 " + hex.EncodeToString(ca.Raw), "ce534352", "3 ok"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the database (-want +got):\n%s", diff)
	}
}

// A certificate that is larger than what fits is an error, not a broken file.
func TestNSSDatabaseOfLargeCertificate(t *testing.T) {
	ca := newCertificate(t, pkix.Name{CommonName: strings.Repeat("x", 4000), SerialNumber: new(big.Int).String()})
	if _, err := newNSSDatabase(ca); err == nil || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("got %v, want an error that says that it does not fit", err)
	}
}
