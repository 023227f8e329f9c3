// Package pathvariants says what a path with encoded slashes, or with an encoded "?" or
// "#", may mean. RFC 3986 (section 2.2) tells an encoded slash from a slash; some
// servers and the proxies in front of them do not, and route by what they have
// decoded. Some parse what they have decoded once more, and end the path at a "?" or
// a "#" of it.
//
// It guarantees that a path has a bounded number of readings, of which each is
// itself a path without an empty segment that the path does not have. It does not
// guess which one a server takes: who decides about a path decides about all.
package pathvariants

import "strings"

// Slash is how a normalised path writes an encoded slash: in upper case. Nothing
// else in it is a percent sign before two hexadecimal digits.
const Slash = "%2F"

// Segments bounds the segments of a path that hold encoded slashes, and so the
// readings: 8 for 3, and as many of the path that is cut.
const Segments = 3

// Several tells whether a normalised path has more than one reading.
func Several(path string) bool {
	return strings.IndexByte(path, '%') >= 0 && strings.Contains(path, Slash) || strings.ContainsAny(path, "?#")
}

// Decoded is the path to a server that decodes it before it looks for segments.
func Decoded(path string) string { return strings.ReplaceAll(path, Slash, "/") }

// Of lists the readings of a normalised path: as it is first, and then those of a
// server that takes the one segment as it is and decodes the other, as a router does
// whose last parameter is the rest of the path, up to the one with all of them decoded.
// A segment is decoded as a whole or not at all. Those that end at the first "?" or "#"
// follow. It is nil for a path of too many readings.
func Of(path string) []string {
	list := slashes(path)
	if cut := strings.IndexAny(path, "?#"); cut > 0 && list != nil {
		list = append(list, slashes(path[:cut])...)
	}
	return list
}

// slashes lists the readings of a path that is not cut.
func slashes(path string) []string {
	if !strings.Contains(path, Slash) {
		return []string{path}
	}
	segments := strings.Split(path, "/")
	var encoded []int
	for i, s := range segments {
		if strings.Contains(s, Slash) {
			encoded = append(encoded, i)
		}
	}
	if len(encoded) > Segments {
		return nil
	}
	list := make([]string, 0, 1<<len(encoded))
	read := make([]string, len(segments))
	for decoded := range 1 << len(encoded) {
		copy(read, segments)
		for bit, i := range encoded {
			if decoded&(1<<bit) != 0 {
				read[i] = Decoded(read[i])
			}
		}
		list = append(list, strings.Join(read, "/"))
	}
	return list
}
