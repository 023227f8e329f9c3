package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Location is where a configuration is read from, each time anew.
type Location struct {
	File    string // named by a flag; empty to look for one
	DataDir string // replaces the configuration's dataDir unless it is empty

	read Print // of the file, before it was read last
}

const systemFile = "/etc/sallyport/sallyport.yaml"

// Path is the configuration file, or empty for the embedded defaults. It is never
// looked for in the working directory, where anybody may have put one.
func (s *Location) Path() string {
	if s.File != "" {
		return s.File
	}
	if p := os.Getenv("SALLYPORT_CONFIG"); p != "" {
		return p
	}
	if _, err := os.Stat(systemFile); !errors.Is(err, fs.ErrNotExist) {
		return systemFile
	}
	return ""
}

// Load reads the configuration. With an error that the configuration itself has, it
// returns as much of it as could be read.
func (s *Location) Load() (cfg *Config, err error) {
	if p := s.Path(); p != "" {
		s.read = NewPrint(p)
		cfg, err = Load(p)
	} else {
		cfg, err = Parse("embedded defaults", nil)
	}
	if err != nil {
		return cfg, err // it names the file and the line
	}
	if s.DataDir != "" {
		if cfg.DataDir, err = filepath.Abs(s.DataDir); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

// Changed tells whether the file has been written since Load began to read it.
func (s *Location) Changed() bool {
	p := s.Path()
	return p != "" && NewPrint(p) != s.read
}
