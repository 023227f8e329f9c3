package regotest

import (
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
)

// Coverage is how much of a team's Rego its tests evaluated. Tests themselves,
// the library and Sallyport's own Rego are not counted.
type Coverage struct {
	// Percent is of lines with a rule's head or an expression.
	Percent float64       `json:"percent"`
	Covered int           `json:"covered"` // lines
	Missed  int           `json:"missed"`  // lines
	Files   []CoveredFile `json:"files"`
}

// CoveredFile is the coverage of one file.
type CoveredFile struct {
	File    string  `json:"file"`
	Percent float64 `json:"percent"`
	// Missed lists the lines that no test came to.
	Missed []int `json:"missed,omitempty"`
}

func coverage(r cover.Report, modules map[string]*ast.Module) *Coverage {
	c := &Coverage{}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		f := r.Files[name]
		if f == nil {
			continue
		}
		file := CoveredFile{File: name, Percent: f.Coverage}
		missed := map[int]bool{}
		for _, lines := range f.NotCovered {
			for row := lines.Start.Row; row <= lines.End.Row; row++ {
				missed[row] = true
			}
		}
		file.Missed = slices.Sorted(maps.Keys(missed))
		c.Covered += f.CoveredLines
		c.Missed += f.NotCoveredLines
		c.Files = append(c.Files, file)
	}
	if all := c.Covered + c.Missed; all > 0 {
		c.Percent = 100 * float64(c.Covered) / float64(all)
	}
	return c
}
