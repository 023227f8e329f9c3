package meter

import (
	"errors"
	"slices"
	"strings"
)

// maxModels bounds how many models one request may name.
const maxModels = 4

// ErrModel says that a request's model cannot be read.
var ErrModel = errors.New("its body is not one JSON object that names its model")

// Ask reads which model a request is for, from its body: a JSON object with the
// key model, however that is spelt and how often. Make it with [NewAsk].
type Ask struct {
	doc    scanner
	models []string
	bad    bool
	docs   int
}

// NewAsk is for one request.
func NewAsk() *Ask {
	a := &Ask{}
	a.doc.scalar, a.doc.whole = a.scalar, func() {
		a.docs++
		a.bad = a.bad || a.doc.around > 0
	}
	return a
}

// Write takes more of the body.
func (a *Ask) Write(p []byte) { a.doc.write(p) }

func (a *Ask) scalar(level int, kind byte, text []byte) {
	if k := a.doc.path[level]; level != 1 || k != kModel && k != kModelAlike {
		return
	}
	name := Name(text)
	if kind != '"' || name == "" || len(a.models) == maxModels {
		a.bad = true
		return
	}
	if !slices.Contains(a.models, name) {
		a.models = append(a.models, name)
	}
}

// Models are those that the whole body names: one, or more if it is a trick. The
// error is ErrModel.
func (a *Ask) Models() ([]string, error) {
	if a.bad || a.docs != 1 || a.doc.open() || len(a.models) == 0 {
		return nil, ErrModel
	}
	return a.models, nil
}

// InPath is the model that a request's path names, as Google's, Azure's and
// Amazon's do, or empty: …/models/NAME:method, …/deployments/NAME/…, /model/NAME/….
func InPath(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments[:len(segments)-1] {
		next := segments[i+1]
		name, method, found := strings.Cut(next, ":")
		switch {
		case (s == "models" || s == "tunedModels") && found && method != "" && i+2 == len(segments):
			return Name([]byte(name))
		case s == "deployments" && i > 0 && segments[i-1] == "openai" && i+2 < len(segments),
			s == "model" && i == 1 && i+2 < len(segments):
			return Name([]byte(next))
		}
	}
	return ""
}
