package index

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what is indexed of one event, so that no sandbox makes the index larger than
// the log.
const (
	maxText = 4 << 10 // bytes of each field
	maxWord = 64      // bytes of a word, of which the rest does not count
)

// words appends the words of the first bytes of a text, in lower case.
func words(all []string, text string, most int) []string {
	if len(text) > most {
		text = text[:most]
	}
	for w := range strings.FieldsFuncSeq(text, separates) {
		w = strings.ToLower(w)
		if len(w) > maxWord {
			end := maxWord
			for !utf8.RuneStart(w[end]) {
				end--
			}
			w = w[:end]
		}
		all = append(all, w)
	}
	return all
}

// separates says whether a rune is in no word. Bytes that are no UTF-8 are U+FFFD here.
func separates(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r)
}
