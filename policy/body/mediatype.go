package body

import (
	"errors"
	"mime"
	"slices"
	"strings"
)

// Raw is a request's body and the header fields that say what it is: Content-Type,
// Content-Encoding, Upgrade. Values of others are not looked at.
type Raw struct {
	Header map[string][]string // by canonical names
	Text   []byte
	// Size is the whole body's, where Text is cut behind MaxBody and one byte.
	Size int64
}

// Reasons for which a body cannot be judged.
var (
	ErrNone        = errors.New("there is none")
	errUpgraded    = errors.New("the request switches protocols, and has none")
	errContentType = errors.New("its Content-Type is not application/json, nor another of JSON, in UTF-8")
	errEncoded     = errors.New("it has a content coding")
	errAlias       = errors.New("a header that some servers take for one of the body's has an underscore in its name")
)

// Unsuited says why a request with such a header, by canonical names, has no
// body that is JSON whoever reads it, or nil. None says that it has no body at all.
func Unsuited(header map[string][]string, none bool) error {
	if len(header["Upgrade"]) > 0 {
		return errUpgraded
	}
	if none {
		return ErrNone
	}
	for name := range header {
		if !strings.Contains(name, "_") {
			continue
		}
		switch strings.ToLower(strings.ReplaceAll(name, "_", "-")) {
		case "content-type", "content-encoding", "content-length", "transfer-encoding":
			return errAlias
		}
	}
	if slices.ContainsFunc(header["Content-Encoding"], func(v string) bool { return !strings.EqualFold(v, "identity") }) {
		return errEncoded
	}
	types := header["Content-Type"]
	if len(types) != 1 {
		return errContentType
	}
	kind, parameters, err := mime.ParseMediaType(types[0])
	_, charset := parameters["charset"]
	switch {
	case err != nil,
		kind != "application/json" && !(strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")),
		charset && !strings.EqualFold(parameters["charset"], "utf-8"),
		charset && len(parameters) > 1, !charset && len(parameters) > 0:
		return errContentType
	}
	return nil
}
