package deptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// The unit means something to systemd, with the programs that it names.
func TestUnit(t *testing.T) {
	analyze := must.Program(t, "systemd-analyze")
	unit, err := os.ReadFile("../../../examples/systemd/sallyport.service")
	must.OK(t, err)
	program := filepath.Join(t.TempDir(), "sallyport")
	must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700))
	verify := func(text string) string {
		path := filepath.Join(t.TempDir(), "sallyport.service")
		must.OK(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "/usr/local/bin/sallyport", program)), 0o600))
		out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput()
		if err != nil && len(out) == 0 {
			return err.Error()
		}
		return string(out)
	}
	if said := verify(string(unit)); said != "" {
		t.Errorf("systemd says: %s", said)
	}
	if said := verify(strings.Replace(string(unit), "KillMode=process", "KillMode=sandboxes", 1)); !strings.Contains(said, "kill mode") {
		t.Errorf("of a mistake systemd says %q", said)
	}
	// Each of these makes a mount namespace (exec_needs_mount_namespace in systemd's
	// src/core/execute.c), which the next start would not be in.
	for line := range strings.Lines(string(unit)) {
		key, _, _ := strings.Cut(line, "=")
		switch key {
		case "ProtectSystem", "ProtectHome", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "ProtectProc", "ProcSubset",
			"PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateIPC", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths",
			"BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "MountFlags", "RootDirectory", "RootImage", "DynamicUser", "MountAPIVFS", "ProtectHostname":
			t.Errorf("%s: the disks of running sandboxes would be out of the next start's sight", key)
		}
	}
}
