package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sallyport/audit"
	"sallyport/gateway/answer"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/placeholder"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/live"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// PlaceholderRule is the rule of denials of requests that hold a placeholder where it is
// not replaced.
const PlaceholderRule = "placeholder"

// holding is what a request has to do with the placeholders of its sandbox: which it has
// in its head, and what takes their place.
type holding struct {
	*placeholder.Set
	spots  []spot
	values map[string]standIn // by credential
	room   int64              // of the body, in the budget
	grown  int                // bytes of credentials in the head

	mu      sync.Mutex // the body is read by another goroutine
	through []string   // credentials that were used through their placeholders
	stolen  *placeholder.FoundError
}

// standIn is what takes a placeholder's place, and where.
type standIn struct {
	secret credential.Secret
	places []string
}

// spot is a placeholder in the head of a request.
type spot struct {
	credential string
	place      string // of policy.PlaceholderPlaces, or "" for none of them
	name       string // of the header, or of the query key
	carrier    bool   // credentials travel there, and are removed
	alone      bool   // with nothing besides it but the name of a scheme
}

// hold finds the placeholders in the head of a request, before anything is decided.
func (q *request) hold(r *http.Request) {
	if q.gateway.placeholders == nil {
		return
	}
	set := q.gateway.placeholders(q.identity.ID)
	if set == nil {
		return
	}
	q.holding = &holding{Set: set}
	text := make([]byte, 0, 2048)
	text = append(text, r.URL.Path...)
	text = append(append(text, '\n'), r.URL.RawQuery...)
	for name, values := range r.Header {
		for _, v := range values {
			text = append(append(text, '\n'), v...)
			if pair, ok := basic(name, v); ok {
				text = append(append(text, '\n'), pair...)
			}
		}
	}
	// The forms in which some have their texts are those of all.
	if set.In(text, placeholder.Form) || set.OfName(q.host) != "" {
		q.holding.search(r, q.host)
	}
}

// basic decodes the credentials of Basic authentication (RFC 7617).
func basic(header, value string) (pair string, ok bool) {
	const scheme = "basic "
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) || !strings.HasSuffix(strings.ToLower(header), "authorization") {
		return "", false
	}
	text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(value[len(scheme):]), "="))
	return string(text), err == nil
}

// search notes the placeholders in the head.
func (h *holding) search(r *http.Request, host string) {
	note := func(s spot, names []string) {
		for _, s.credential = range names {
			h.spots = append(h.spots, s)
		}
	}
	if name := h.OfName(host); name != "" {
		note(spot{name: "the host's name"}, []string{name})
	}
	note(spot{place: policy.PlacePath}, h.Of(r.URL.Path, placeholder.Raw))
	for part := range queryParts(r.URL.RawQuery) {
		key, value, _ := strings.Cut(part, "=")
		key, err := url.QueryUnescape(key)
		plain, verr := url.QueryUnescape(value)
		_, alone := h.Is(plain)
		alone = alone && err == nil && verr == nil && len(h.Of(key, placeholder.Raw)) == 0
		note(spot{
			place: policy.PlaceQuery, name: key, alone: alone, carrier: err != nil || credential.CarriesKey(key),
		}, h.Of(part, placeholder.Form))
	}
	for name, values := range r.Header {
		for _, v := range values {
			names := h.Of(v, placeholder.Form)
			if pair, ok := basic(name, v); ok {
				names = append(names, h.Of(pair, placeholder.Raw)...)
			}
			if len(names) > 0 {
				note(spot{
					place: policy.PlaceHeader, name: name, alone: h.kept(name, v) != "", carrier: carriesHeader(name),
				}, names)
			}
		}
	}
}

// queryParts yields the parameters of a query. Some servers take ; for &.
func queryParts(query string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for query != "" {
			part := query
			if i := strings.IndexAny(query, "&;"); i >= 0 {
				part, query = query[:i], query[i+1:]
			} else {
				query = ""
			}
			if !yield(part) {
				return
			}
		}
	}
}

// socketProtocol is the header in which browsers have to put credentials of a WebSocket.
const socketProtocol = "Sec-Websocket-Protocol"

// fillers are what clients of Basic authentication write beside a key where the service
// reads nothing else.
var fillers = []string{
	"", "x-access-token", "oauth2", "git", "api", "x-oauth-basic", "x", "token", "__token__", "x-token-auth", "oauth2accesstoken",
}

// schemes are those of Authorization that have a key behind them, in lower case (RFC 9110,
// section 11.4, and what services make of it).
var schemes = []string{
	"bearer", "basic", "token", "key", "apikey", "api-key", "apitoken", "api-token", "x-api-key", "oauth", "jwt", "bot", "ssws", "geniekey",
	"googlelogin", "snowflake", "splunk", "discogs", "klaviyo-api-key", "deepl-auth-key", "zoho-oauthtoken",
}

// kept is what stays of a header in which credentials travel: the placeholder, and what
// says how it is to be read. An account of the sandbox's own beside it would be a way out,
// and some servers take a key for a user or a password, whatever the other of them is: so
// only well-known texts may stand there.
func (h *holding) kept(header, value string) string {
	switch header {
	case "Cookie":
		return h.keptOf(value, ";", "; ", func(pair string) string {
			_, v, _ := strings.Cut(pair, "=")
			return v
		})
	case socketProtocol:
		return h.keptOf(value, ",", ", ", func(token string) string { return token[strings.LastIndexByte(token, '.')+1:] })
	}
	if pair, ok := basic(header, value); ok {
		if h.inPair(pair, fillers) {
			return value
		}
		return ""
	}
	text := value
	if scheme, rest, ok := strings.Cut(text, " "); ok && slices.Contains(schemes, strings.ToLower(scheme)) {
		text = strings.TrimSpace(rest)
	}
	if name, rest, ok := strings.Cut(text, "="); ok && credential.CarriesKey(name) {
		text = rest
	}
	if _, is := h.Is(strings.Trim(text, `"`)); is {
		return value
	}
	return ""
}

// inPair tells whether a user and a password are a placeholder, and one of some texts
// besides. A placeholder may have colons.
func (h *holding) inPair(pair string, beside []string) bool {
	for i := range len(pair) + 1 {
		if i < len(pair) && pair[i] != ':' {
			continue
		}
		user, password := pair[:i], strings.TrimPrefix(pair[i:], ":")
		_, isUser := h.Is(user)
		_, isPassword := h.Is(password)
		if isUser && isPassword || isUser && slices.Contains(beside, password) || isPassword && slices.Contains(beside, user) {
			return true
		}
	}
	return false
}

// keptOf is what stays of a list: the elements that are a placeholder.
func (h *holding) keptOf(list, sep, join string, of func(string) string) string {
	var kept []string
	for part := range strings.SplitSeq(list, sep) {
		part = strings.TrimSpace(part)
		if _, is := h.Is(of(part)); is {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, join)
}

// misplaced denies a request that has a placeholder in its head where the decision does
// not put the credential.
func (q *request) misplaced(r *http.Request, d policy.Decision) *answer.Answer {
	if q.holding == nil {
		return nil
	}
	for _, s := range q.holding.spots {
		if s.allowed(d) {
			continue
		}
		e := &misplacedError{credential: s.credential, where: s.String()}
		i := slices.IndexFunc(d.Inject, func(i policy.Injection) bool { return i.Credential == s.credential })
		switch {
		case i >= 0 && s.carrier && listed(d.Inject[i].Inject.Placeholder, s.place, s.name):
			e.why, e.beside = "other text stands beside it", true
		case i >= 0:
			e.place, e.why = s.entry(), "the rule does not put the credential there"
		case d.Action == policy.Deny && d.Reason != "":
			e.why = "the request is denied: " + d.Reason
		default:
			e.why = "no rule puts the credential into this request"
		}
		return q.denyMisplaced(r, d, e)
	}
	return nil
}

// refusedWith answers a request that is denied whatever its head says, and that has a
// placeholder in it.
func (q *request) refusedWith(r *http.Request, d policy.Decision) *answer.Answer {
	if q.hold(r); q.holding == nil || len(q.holding.spots) == 0 {
		return nil
	}
	if q.form.seen == nil {
		q.describe(r)
	}
	return q.misplaced(r, d)
}

// denyMisplaced records a denial and answers the sandbox.
func (q *request) denyMisplaced(r *http.Request, d policy.Decision, why *misplacedError) *answer.Answer {
	d = floor(d, PlaceholderRule, why.Error())
	e := q.event(r, d)
	e.SeverityID = audit.SeverityHigh
	e.Unmapped.Sallyport.Found = []audit.CredentialUse{{Name: why.credential}}
	id := q.gateway.denial(q.peer, q.target, e)
	q.gateway.metrics.Decided(policy.PhaseRequest, d)
	a := denied(d, id, r.Method+" "+q.scheme()+"://"+q.authority)
	a.Remedy = why.remedy()
	return a
}

// misplacedError says that a placeholder stands where it is not replaced.
type misplacedError struct {
	credential, where, why string
	place                  string // that a rule could list
	beside                 bool   // other text keeps it from being replaced
}

func (e *misplacedError) Error() string {
	return fmt.Sprintf("the placeholder of credential %q stands in %s, and %s", e.credential, e.where, e.why)
}

func (e *misplacedError) remedy() string {
	text := "A placeholder is worth nothing by itself: leave it out of what is not for the service that its credential is of. "
	if e.beside {
		return text + "Where it is replaced it stands alone, or with a scheme or a filler such as x-access-token. An operator can have a user's name sent with the credential: inject: {basic: {username: NAME, password: \"{{ .token }}\"}}."
	}
	if e.place != "" {
		return text + fmt.Sprintf("An operator can have it replaced there, where it is not removed: inject: {placeholder: [%s]} in the egressAuth rule for this destination.", e.place)
	}
	return text + fmt.Sprintf("If the credential belongs here, an operator must add an egressAuth rule with authRef: %s for this request.", e.credential)
}

func (s spot) String() string {
	switch s.place {
	case policy.PlaceHeader:
		return "header " + s.name
	case policy.PlaceQuery:
		return "query parameter " + policy.Clean(s.name)
	case policy.PlacePath:
		return "the path"
	}
	return s.name
}

// entry is what a rule lists to have a placeholder replaced there.
func (s spot) entry() string {
	if s.carrier || s.name == "" || s.place == "" {
		return s.place
	}
	return strconv.Quote(s.place + ":" + policy.Clean(s.name))
}

// listed tells whether a rule lists a place: a header or a query parameter, which have
// names, by its name, or for all of those that credentials travel in.
func listed(places []string, place, name string) bool {
	switch {
	case place == policy.PlaceHeader && !carriesHeader(name), place == policy.PlaceQuery && !credential.CarriesKey(name):
	case slices.Contains(places, place):
		return true
	}
	return slices.ContainsFunc(places, func(p string) bool {
		kind, named, ok := strings.Cut(p, ":")
		return ok && kind == place && (named == name || place == policy.PlaceHeader && strings.EqualFold(named, name))
	})
}

// carriesHeader tells whether credentials travel in a header.
func carriesHeader(name string) bool {
	return credential.CarriesHeader(name) || name == socketProtocol
}

// allowed tells whether a decision replaces a placeholder where it stands, or removes it
// there and puts the credential into its own place.
func (s spot) allowed(d policy.Decision) bool {
	for _, i := range d.Inject {
		if i.Credential != s.credential {
			continue
		}
		if i.Inject.Placeholder != nil {
			return listed(i.Inject.Placeholder, s.place, s.name) && (s.alone || !s.carrier)
		}
		return s.place != "" && (s.carrier || i.Inject.Place() == s.place+" "+http.CanonicalHeaderKey(s.name) || i.Inject.Place() == "query parameter "+s.name)
	}
	return false
}

// fills tells whether what the request has where a credential goes is the credential's
// placeholder.
func (h *holding) fills(i policy.Injection, r *http.Request) bool {
	return h != nil && slices.ContainsFunc(h.spots, func(s spot) bool {
		if s.credential != i.Credential {
			return false
		}
		inHeader := s.place == policy.PlaceHeader && i.Inject.Place() == "header "+s.name && len(r.Header[s.name]) == 1
		return inHeader && (s.alone || h.written(i.Inject, s.name, r.Header[s.name][0])) || s.alone && i.Inject.Place() == "query parameter "+s.name
	})
}

// written tells whether a header is what a rule writes, with a placeholder in the secret's
// place.
func (h *holding) written(i policy.Inject, name, value string) bool {
	if i.Basic != nil {
		pair, ok := basic(name, value)
		return ok && h.inPair(pair, []string{i.Basic.Username, i.Basic.Password})
	}
	if i.Header == nil {
		return false
	}
	before, rest, _ := strings.Cut(i.Header.Value, "{{")
	after := rest
	if end := strings.LastIndex(rest, "}}"); end >= 0 {
		after = rest[end+len("}}"):]
	}
	text, begins := strings.CutPrefix(value, before)
	text, ends := strings.CutSuffix(text, after)
	_, is := h.Is(text)
	return begins && ends && is
}

// needs tells whether the request may have the placeholder of a credential that is to take
// its place.
func (h *holding) needs(i policy.Injection, hasBody bool) bool {
	if h == nil {
		return false
	}
	return hasBody && slices.Contains(i.Inject.Placeholder, policy.PlaceBody) ||
		slices.ContainsFunc(h.spots, func(s spot) bool { return s.credential == i.Credential })
}

// take notes what takes the place of a credential's placeholder.
func (h *holding) take(i policy.Injection, value credential.Secret) {
	if h.values == nil {
		h.values = make(map[string]standIn)
	}
	h.values[i.Credential] = standIn{value, i.Inject.Placeholder}
}

// mark returns what was injected, and which of it the sandbox had asked for by its
// placeholder.
func (h *holding) mark(used []audit.CredentialUse) []audit.CredentialUse {
	if h == nil {
		return used
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range used {
		used[i].Placeholder = slices.Contains(h.through, used[i].Name) || slices.ContainsFunc(h.spots, func(s spot) bool { return s.credential == used[i].Name })
	}
	return used
}

func (h *holding) used(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.through, name) {
		h.through = append(h.through, name)
	}
}

// theft is the placeholder that was found in the body, nil for none.
func (h *holding) theft() *placeholder.FoundError {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stolen
}

// note keeps the error of a body that was broken off.
func (h *holding) note(err error) {
	if found := new(placeholder.FoundError); errors.As(err, &found) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stolen = found
	}
}

// carriers are the parts of a head that are kept although credentials travel in them.
type carriers struct {
	header http.Header
	query  []string
}

// carriers returns what the sandbox's own credentials are removed without.
func (h *holding) carriers(r *http.Request, d policy.Decision) (c carriers) {
	if h == nil {
		return c
	}
	for _, s := range h.spots {
		replaces := slices.ContainsFunc(d.Inject, func(i policy.Injection) bool {
			return i.Credential == s.credential && listed(i.Inject.Placeholder, s.place, s.name)
		})
		if !s.carrier || !s.alone || !replaces {
			continue
		}
		switch s.place {
		case policy.PlaceHeader:
			if c.header == nil {
				c.header = make(http.Header)
			}
			if c.header[s.name] != nil { // of another spot in it
				continue
			}
			for _, v := range r.Header[s.name] {
				if v = h.kept(s.name, v); v != "" && !slices.Contains(c.header[s.name], v) {
					c.header[s.name] = append(c.header[s.name], v)
				}
			}
		case policy.PlaceQuery:
			for part := range queryParts(r.URL.RawQuery) {
				key, _, _ := strings.Cut(part, "=")
				if name, err := url.QueryUnescape(key); err == nil && name == s.name && len(h.Of(part, placeholder.Form)) > 0 && !slices.Contains(c.query, part) {
					c.query = append(c.query, part)
				}
			}
		}
	}
	return c
}

// replaceHead puts credentials into the head where their placeholders stand.
func (h *holding) replaceHead(r *http.Request, c carriers) (err error) {
	if h == nil || len(h.values) == 0 {
		return nil
	}
	for name, values := range c.header {
		if name == socketProtocol { // others stay
			values = append(slices.Clone(r.Header[name]), values...)
			values = []string{strings.Join(values, ", ")}
		}
		r.Header[name] = values
	}
	for _, part := range c.query {
		if r.URL.RawQuery != "" {
			r.URL.RawQuery += "&"
		}
		r.URL.RawQuery += part
	}
	h.grown = 0
	for name, values := range r.Header {
		for i, v := range values {
			if values[i], err = h.replaceHeader(name, v); err != nil {
				return err
			}
		}
	}
	if r.URL.RawQuery, err = h.replaceQuery(r.URL.RawQuery); err != nil {
		return err
	}
	path, err := h.Replace(r.URL.EscapedPath(), placeholder.Form, h.inHead(policy.PlacePath, "", segment))
	if err != nil {
		return err
	}
	if path != r.URL.EscapedPath() {
		form.SetPath(r.URL, path)
	}
	if _, size := http1.Measure(r.Header); h.grown > 0 && size+len(path)+len(r.URL.RawQuery) > maxHeader {
		return errLargeHead
	}
	return nil
}

// errLargeHead is the error of a head that is too large with the credentials in it.
var errLargeHead = &credential.RequestError{
	Status: http.StatusRequestHeaderFieldsTooLarge,
	Reason: fmt.Sprintf("with the credentials in the place of their placeholders the head is larger than %d KiB", maxHeader>>10),
}

// inHead is instead for a place in the head, whose length is bounded.
func (h *holding) inHead(place, name string, spell spelling) func(string) ([]byte, error) {
	instead := h.instead(place, name, spell)
	return func(of string) ([]byte, error) {
		text, err := instead(of)
		if h.grown += len(text); h.grown > maxHeader {
			return nil, errLargeHead
		}
		return text, err
	}
}

// replaceQuery replaces placeholders in a query, by its parameters.
func (h *holding) replaceQuery(query string) (string, error) {
	var out strings.Builder
	for query != "" {
		part := query
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			part = query[:i+1]
		}
		query = query[len(part):]
		key, _, _ := strings.Cut(strings.TrimRight(part, "&;"), "=")
		name, _ := url.QueryUnescape(key) // "" for none
		part, err := h.Replace(part, placeholder.Form, h.inHead(policy.PlaceQuery, name, formed))
		if err != nil {
			return "", err
		}
		out.WriteString(part)
	}
	return out.String(), nil
}

func (h *holding) replaceHeader(name, value string) (string, error) {
	if pair, ok := basic(name, value); ok {
		changed, err := h.Replace(pair, placeholder.Raw, h.inHead(policy.PlaceHeader, name, raw))
		if err != nil || changed == pair {
			return value, err
		}
		return value[:len("basic ")] + base64.StdEncoding.EncodeToString([]byte(changed)), nil
	}
	spell := raw
	if name == socketProtocol {
		spell = token
	}
	changed, err := h.Replace(value, placeholder.Raw, h.inHead(policy.PlaceHeader, name, spell))
	if err != nil || changed != value || !strings.Contains(value, "%") {
		return changed, err
	}
	return h.Replace(value, placeholder.Form, h.inHead(policy.PlaceHeader, name, formed))
}

// How a value is spelled in a place.
type spelling func(value string) ([]byte, error)

func raw(value string) ([]byte, error)    { return []byte(value), nil }
func formed(value string) ([]byte, error) { return []byte(url.QueryEscape(value)), nil }

// quoted is as in a string of JSON.
func quoted(value string) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return text[1 : len(text)-1], nil
}

// segment is a part of a path. What some servers take for more than one segment is
// refused.
func segment(value string) ([]byte, error) {
	if strings.ContainsAny(value, `/\%?#;`) || strings.Trim(value, ".") == "" {
		return nil, errors.New("the secret has a character that a path cannot hold")
	}
	return []byte(url.PathEscape(value)), nil
}

func token(value string) ([]byte, error) {
	if !policy.IsToken(value) {
		return nil, errors.New("the secret has a character that the name of a subprotocol cannot have")
	}
	return []byte(value), nil
}

// instead returns what takes the place of placeholders in a place, or in the header or
// query parameter of a name.
func (h *holding) instead(place, named string, spell spelling) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		in, ok := h.values[name]
		if !ok || !listed(in.places, place, named) {
			return nil, &placeholder.FoundError{Credential: name}
		}
		text, err := spell(in.secret.Reveal())
		if err != nil {
			return nil, &leaseError{credential: name, err: err}
		}
		h.used(name)
		return text, nil
	}
}

// replaces tells whether a credential takes its placeholder's place in bodies.
func (h *holding) replacesBody() bool {
	for _, in := range h.values {
		if slices.Contains(in.places, policy.PlaceBody) {
			return true
		}
	}
	return false
}

// bodyKind is how texts of a content type spell characters; known is false where a
// placeholder cannot be replaced without knowing more of it.
func bodyKind(contentType string) (k placeholder.Kind, spell spelling, known bool) {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
	case kind == "application/x-www-form-urlencoded":
		return placeholder.Form, formed, true
	case strings.HasSuffix(kind, "/json"), strings.HasSuffix(kind, "+json"), strings.HasSuffix(kind, "ndjson"), strings.HasSuffix(kind, "jsonl"):
		return placeholder.JSON, quoted, true
	case kind == "multipart/form-data", strings.HasPrefix(kind, "text/") && kind != "text/xml", kind == "application/graphql":
		return placeholder.Raw, raw, true
	}
	return placeholder.Raw, raw, false
}

// maxMeasured is the length in bytes, before and after, of the bodies whose length is told
// to the upstream although placeholders in them are replaced. Longer ones go in chunks.
const maxMeasured = 64 << 10

// searchBody has placeholders in the body of a request that leaves replaced, or the
// request broken off. A body that is coded is not searched.
func (q *request) searchBody(r *http.Request) error {
	h := q.holding
	if h == nil || r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil
	}
	kind, spell, known := bodyKind(r.Header.Get("Content-Type"))
	if !known || !h.replacesBody() {
		r.Body = &searchedBody{Reader: placeholder.NewReader(h.Stream(kind, nil), r.Body), of: q}
		return nil
	}
	body := &searchedBody{Reader: placeholder.NewReader(h.Stream(kind, h.instead(policy.PlaceBody, "", spell)), r.Body), of: q}
	length := r.ContentLength
	r.Body, r.ContentLength = body, -1
	delete(r.Header, "Content-Length")
	if length < 0 || length > maxMeasured || q.gateway.bodies.Take(q.identity.ID, maxMeasured) != nil {
		return nil
	}
	h.room = maxMeasured
	text, err := io.ReadAll(io.LimitReader(body, maxMeasured+1))
	if err != nil {
		return err
	}
	delete(r.Header, "Expect")   // it is here, or begins to
	if len(text) > maxMeasured { // secrets are longer than their placeholders
		r.Body = &begunBody{io.MultiReader(bytes.NewReader(text), body), body}
		return nil
	}
	r.Body, r.ContentLength = &begunBody{bytes.NewReader(text), body}, int64(len(text))
	return nil
}

// begunBody is a body that has been read, or a part of it.
type begunBody struct {
	io.Reader
	io.Closer
}

// searchedBody is a body without placeholders. It also searches the trailers.
type searchedBody struct {
	*placeholder.Reader
	of *request
}

func (b *searchedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		for _, values := range b.of.sent.trailer {
			for _, v := range values {
				if names := b.of.holding.Of(v, placeholder.Raw); len(names) > 0 {
					err = &placeholder.FoundError{Credential: names[0]}
				}
			}
		}
	}
	b.of.holding.note(err)
	return n, err
}

// messages are those that the sandbox sends on a WebSocket.
type messages struct {
	*placeholder.Stream
	of     *request
	text   bool
	opened bool // a piece of the message has come
}

// searched is the upstream of a WebSocket, in whose messages placeholders are replaced.
func (q *request) searched(conn io.ReadWriteCloser) io.ReadWriteCloser {
	if q.holding == nil {
		return conn
	}
	m := &messages{of: q, Stream: q.holding.Stream(placeholder.Raw, nil)}
	return struct {
		io.Reader
		io.Writer
		io.Closer
	}{conn, &websocket.Rewriter{Writer: conn, Messages: m}, conn}
}

// Begin implements websocket.Messages.
func (m *messages) Begin(text bool) { m.text, m.opened = text, false }

// Feed implements websocket.Messages. A message that begins like JSON is taken for that.
func (m *messages) Feed(p []byte, last bool) {
	if !m.opened && (len(p) > 0 || last) {
		m.opened = true
		kind, spell := placeholder.Raw, spelling(raw)
		if begin := strings.TrimLeft(string(p[:min(len(p), 64)]), " \t\r\n"); m.text && begin != "" && (begin[0] == '{' || begin[0] == '[') {
			kind, spell = placeholder.JSON, quoted
		}
		var instead func(string) ([]byte, error)
		if h := m.of.holding; m.text && h.replacesBody() {
			instead = h.instead(policy.PlaceBody, "", spell)
		}
		m.Stream.Reset(kind, instead)
	}
	m.Stream.Feed(p, last)
}

// Next implements websocket.Messages.
func (m *messages) Next() ([]byte, error) {
	p, err := m.Stream.Next()
	if err != nil {
		m.of.holding.note(err)
		if c := m.of.out.taken.Load(); c != nil {
			m.of.gateway.work.Go(func() { c.Goodbye("a placeholder stands where it is not replaced", live.Grace/2) })
		}
	}
	return p, err
}
