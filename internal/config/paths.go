package config

import "path/filepath"

// Socket is the path of the unix socket on which the daemon answers.
func (c *Config) Socket() string { return filepath.Join(c.RunDir, "sallyport.sock") }

// AuditDir is the folder of the audit log.
func (c *Config) AuditDir() string { return filepath.Join(c.DataDir, "audit") }

// CADir is the folder of the certificate authority's sealed key.
func (c *Config) CADir() string { return filepath.Join(c.DataDir, "ca") }

// IndexDir is the folder of the daemon's own records.
func (c *Config) IndexDir() string { return filepath.Join(c.DataDir, "index") }

// AuditIndex is the file by which events of the audit log are found. It can be removed.
func (c *Config) AuditIndex() string { return filepath.Join(c.IndexDir(), "audit.db") }

// SandboxesDir has a folder for each sandbox.
func (c *Config) SandboxesDir() string { return filepath.Join(c.DataDir, "sandboxes") }

// PodsDir has a folder for each pod of a node of Kubernetes.
func (c *Config) PodsDir() string { return filepath.Join(c.DataDir, "pods") }

// StoresDir has a folder for each store that sandboxes share.
func (c *Config) StoresDir() string { return filepath.Join(c.DataDir, "stores") }

// SleepDir is in memory: the clear text of sandboxes that hibernate.
func (c *Config) SleepDir() string { return filepath.Join(c.RunDir, "sleep") }
