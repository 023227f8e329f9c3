package oracle

import (
	"slices"
	"strings"
)

// Readings are the asks that one with encoded slashes in its path, or with "?" or "#",
// may turn out to be: a server takes each segment as it stands, or has decoded it; and it
// reads all of the path, or what is before the "?" or "#". The first is as it was sent.
func Readings(a Ask) []Ask {
	a.sent = a.Path
	var list []Ask
	var read func(done, rest string)
	read = func(done, rest string) {
		if rest == "" {
			one := a
			one.Path = done
			list = append(list, one)
			return
		}
		segment, after := rest, ""
		if i := strings.Index(rest[1:], "/"); i >= 0 {
			segment, after = rest[:i+1], rest[i+1:]
		}
		read(done+segment, after)
		if plain := strings.ReplaceAll(segment, "%2F", "/"); plain != segment {
			read(done+plain, after)
		}
	}
	read("", a.Path)
	for i, c := range a.Path {
		if c == '?' || c == '#' {
			read("", a.Path[:i])
			break
		}
	}
	return list
}

// strictest is what comes of an ask of whose readings this comes: a denial of one
// denies it, one that must be approved must be; and what they inject is the same.
// Where several are denied, that is named which is not for a body.
func strictest(list []Verdict) Verdict {
	first := func(are func(Verdict) bool) (Verdict, bool) {
		i := slices.IndexFunc(list, are)
		if i < 0 {
			return Verdict{}, false
		}
		return list[i], true
	}
	for _, are := range []func(Verdict) bool{
		func(v Verdict) bool { return v.Malformed },
		func(v Verdict) bool { return v.Action == "deny" && !v.Blind },
		func(v Verdict) bool { return v.Action == "deny" },
	} {
		if v, found := first(are); found {
			return v
		}
	}
	if _, differs := first(func(v Verdict) bool { return !slices.Equal(v.Credentials, list[0].Credentials) }); differs {
		return Verdict{Action: "deny"}
	}
	if v, found := first(func(v Verdict) bool { return v.Action == "approve" }); found {
		return v
	}
	return list[0]
}
