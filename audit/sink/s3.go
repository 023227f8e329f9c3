package sink

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// s3Sink puts each batch into an object of gzipped lines. Its name has the day and the
// numbers of the first and the last record, so that a repeat replaces the same object.
type s3Sink struct {
	client         *minio.Client
	transport      *http.Transport
	bucket, prefix string
	keys           *s3Keys
}

func openS3(c Config, secret Secret, dial Dial) (Protocol, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(c, dial)
	if err != nil {
		return nil, err
	}
	s := &s3Sink{transport: transport, bucket: c.Bucket, prefix: c.Prefix, keys: &s3Keys{secret: secret}}
	s.client, err = minio.New(u.Host, &minio.Options{
		Creds: credentials.New(s.keys), Secure: u.Scheme == "https", Transport: transport, Region: c.Region, MaxRetries: 1,
	})
	return s, err
}

func (s *s3Sink) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

func (s *s3Sink) Send(ctx context.Context, batch []Item) (Answer, error) {
	if err := s.keys.read(ctx); err != nil {
		return Answer{}, err
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	if _, err := z.Write(lines(batch)); err != nil {
		return Answer{}, err
	}
	if err := z.Close(); err != nil {
		return Answer{}, err
	}
	first := batch[0]
	name := fmt.Sprintf("%s%s/%020d-%020d.jsonl.gz", s.prefix, time.UnixMilli(first.Time).UTC().Format("2006/01/02"), first.Sequence, batch[len(batch)-1].Sequence)
	info, err := s.client.PutObject(ctx, s.bucket, name, &body, int64(body.Len()), minio.PutObjectOptions{ContentType: "application/gzip", SendContentMd5: true})
	if err == nil {
		return Answer{Text: "stored as " + info.Key}, nil
	}
	var r minio.ErrorResponse
	if errors.As(err, &r) && (r.Code == "EntityTooLarge" || r.StatusCode == http.StatusRequestEntityTooLarge) {
		return Answer{}, &RefusedError{excerpt([]byte(err.Error()), s.keys.fields)}
	}
	return Answer{}, s.keys.hide(err)
}

// s3Keys are minio's source of the sink's credential, which has the fields accessKeyID
// and secretAccessKey.
type s3Keys struct {
	secret Secret
	fields map[string]string
}

func (k *s3Keys) read(ctx context.Context) (err error) {
	if k.secret == nil {
		return nil
	}
	if k.fields, err = k.secret(ctx); err != nil {
		return err
	}
	for _, name := range []string{"accessKeyID", "secretAccessKey"} {
		if k.fields[name] == "" {
			return fmt.Errorf("%w: %s", errNoField, name)
		}
	}
	return nil
}

func (k *s3Keys) hide(err error) error {
	for _, secret := range k.fields {
		if secret != "" && strings.Contains(err.Error(), secret) {
			return errors.New("the answer is left out: it holds the credential")
		}
	}
	return err
}

func (k *s3Keys) Retrieve() (credentials.Value, error) {
	v := credentials.Value{AccessKeyID: k.fields["accessKeyID"], SecretAccessKey: k.fields["secretAccessKey"], SignerType: credentials.SignatureV4}
	if v.AccessKeyID == "" {
		v.SignerType = credentials.SignatureAnonymous
	}
	return v, nil
}

func (k *s3Keys) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return k.Retrieve()
}

// IsExpired has the fields read for each request.
func (k *s3Keys) IsExpired() bool { return true }
