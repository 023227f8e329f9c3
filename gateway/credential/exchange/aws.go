package exchange

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/sigv4"
	"sallyport/policy"
)

// awsRole asks for the keys of a role.
type awsRole struct {
	policy.AWSExchange
	client *client
}

// awsKeys is an answer of the Security Token Service.
type awsKeys struct {
	ID      string    `xml:"AccessKeyId"`
	Secret  string    `xml:"SecretAccessKey"`
	Session string    `xml:"SessionToken"`
	Expires time.Time `xml:"Expiration"`
}

func (a *awsRole) trade(ctx context.Context, s *secret) (*traded, error) {
	form := url.Values{
		"Version": {"2011-06-15"}, "Action": {"AssumeRole"}, "RoleArn": {a.RoleARN}, "RoleSessionName": {cmp.Or(a.SessionName, "sallyport")},
		"DurationSeconds": {strconv.Itoa(int(a.Lifetime.Or(time.Hour) / time.Second))},
	}
	if a.Policy != "" {
		form.Set("Policy", a.Policy)
	}
	if a.ExternalID != "" {
		form.Set("ExternalId", a.ExternalID)
	}
	if a.WebIdentity {
		identity, err := s.field("token")
		if err != nil {
			return nil, err
		}
		form.Set("Action", "AssumeRoleWithWebIdentity")
		form.Set("WebIdentityToken", strings.TrimSpace(identity))
	}
	body := form.Encode()
	endpoint := strings.TrimSuffix(cmp.Or(a.URL, "https://sts."+a.Region+".amazonaws.com"), "/") + "/"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		return nil, errors.New("the endpoint is not a URL")
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	if !a.WebIdentity {
		if err := a.sign(s, r, body); err != nil {
			return nil, err
		}
	}
	text, err := a.client.do(r, awsRefusal)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Role     awsKeys `xml:"AssumeRoleResult>Credentials"`
		Identity awsKeys `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	}
	if xml.Unmarshal(text, &answer) != nil {
		return nil, errNotAnswer
	}
	keys := answer.Role
	if a.WebIdentity {
		keys = answer.Identity
	}
	return &traded{expires: keys.Expires, fields: map[string]credential.Secret{
		"accessKeyId": credential.NewSecret(keys.ID), "secretAccessKey": credential.NewSecret(keys.Secret), "sessionToken": credential.NewSecret(keys.Session),
	}}, nil
}

func (a *awsRole) sign(s *secret, r *http.Request, body string) error {
	id, key := s.optional("accessKeyId"), s.optional("secretAccessKey")
	if id == "" || key == "" {
		return fmt.Errorf("%w to exchange: it needs the fields accessKeyId and secretAccessKey", credential.ErrNoSecret)
	}
	sum := sha256.Sum256([]byte(body))
	keys := sigv4.Keys{ID: id, Secret: key, Session: s.optional("sessionToken")}
	form := sigv4.Form{Algorithm: sigv4.V4, Service: "sts", Region: a.Region, Headers: []string{"content-type"}}
	_, err := keys.Sign(r, form, hex.EncodeToString(sum[:]), time.Now())
	return err
}

// awsRefusal reads the errors of AWS's query protocol.
func awsRefusal(text []byte) (code, words string) {
	var answer struct {
		Code    string `xml:"Error>Code"`
		Message string `xml:"Error>Message"`
	}
	_ = xml.Unmarshal(text, &answer) // it says nothing then
	return answer.Code, answer.Message
}
