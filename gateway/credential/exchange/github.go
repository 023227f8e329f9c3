package exchange

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// gitHubApp asks for tokens of an installation.
type gitHubApp struct {
	policy.GitHubAppExchange
	client *client
}

func (g *gitHubApp) trade(ctx context.Context, s *secret) (*traded, error) {
	key, err := s.field("privateKey")
	if err != nil {
		return nil, err
	}
	// GitHub refuses an exp that is more than 10 minutes ahead of its own clock.
	now := time.Now()
	signed, err := sign("RS256", "", key, nil, claims{"iss": g.AppID, "iat": now.Add(-early).Unix(), "exp": now.Add(8 * time.Minute).Unix()})
	s.shown = append(s.shown, signed)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(struct {
		Repositories []string          `json:"repositories,omitempty"`
		Permissions  map[string]string `json:"permissions,omitempty"`
	}{g.Repositories, g.Permissions})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Token      string    `json:"token"`
		Expires    time.Time `json:"expires_at"`
		Repository string    `json:"repository_selection"`
	}
	endpoint := strings.TrimSuffix(cmp.Or(g.URL, "https://api.github.com"), "/") + "/app/installations/" + url.PathEscape(g.InstallationID) + "/access_tokens"
	header := http.Header{
		"Accept": {"application/vnd.github+json"}, "Authorization": {"Bearer " + signed}, "Content-Type": {"application/json"},
		"User-Agent": {"sallyport"}, "X-Github-Api-Version": {"2022-11-28"},
	}
	if err := g.client.post(ctx, endpoint, header, body, &answer); err != nil {
		return nil, err
	}
	if len(g.Repositories) > 0 && answer.Repository == "all" {
		return nil, fmt.Errorf("%w: GitHub's token is for all repositories, although a few were asked for", credential.ErrRefused)
	}
	return token(answer.Token, answer.Expires), nil
}
