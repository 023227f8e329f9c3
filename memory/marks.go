package memory

// Marks are what is to be known of a file before what is shown of it is believed.
type Marks struct {
	// Untrusted says why the file is not to be trusted, or is "".
	Untrusted string `json:"untrusted,omitempty"`
	// Quarantined says why what was written to it has left the memory for the quarantine, or
	// is "".
	Quarantined string `json:"quarantined,omitempty"`
}

// Lines are the marks that there are, in words.
func (m Marks) Lines() (lines []string) {
	if m.Untrusted != "" {
		lines = append(lines, "untrusted: "+m.Untrusted)
	}
	if m.Quarantined != "" {
		lines = append(lines, "quarantined: "+m.Quarantined)
	}
	return lines
}

// InText is the marks as lines of a text for a model, in square brackets.
func (m Marks) InText() (text string) {
	for _, l := range m.Lines() {
		text += "[" + l + "]\n"
	}
	return text
}
