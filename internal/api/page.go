package api

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a page of a list.
const (
	pageSize = 200  // without ?limit=
	maxPage  = 1000 // of ?limit=
)

// replyPage answers with a part of a list by key: up to ?limit= entries after
// ?cursor=. Keys differ. A page begins after the key that the cursor holds, so that what comes and goes meanwhile neither repeats nor
// hides another entry. Where more follows, the Link header (RFC 8288) has the
// next page's address.
func replyPage[T any](w http.ResponseWriter, r *http.Request, list []T, key func(T) string) {
	q := r.URL.Query()
	limit := pageSize
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			writeProblem(w, fmt.Errorf("%w: limit %q: use 1 to %d", errBadRequest, clip(text, 16), maxPage))
			return
		}
		limit = n
	}
	list = slices.SortedFunc(slices.Values(list), func(a, b T) int { return strings.Compare(key(a), key(b)) })
	from := 0
	if text := q.Get("cursor"); text != "" {
		after, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			writeProblem(w, fmt.Errorf("%w: this cursor is none of ours: begin without one", errBadRequest))
			return
		}
		for from < len(list) && key(list[from]) <= string(after) {
			from++
		}
	}
	page := list[from:]
	if len(page) > limit {
		page = page[:limit]
		q.Set("cursor", base64.RawURLEncoding.EncodeToString([]byte(key(page[limit-1]))))
		w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, r.URL.EscapedPath(), q.Encode()))
	}
	if len(page) == 0 {
		page = []T{}
	}
	reply(w, http.StatusOK, page, nil)
}
