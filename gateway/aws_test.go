package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"

	"sallyport/gateway/bodies"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/sigv4"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

const (
	awsID     = "AKIDREALREALREALREAL"
	awsSecret = "real+secret/0123456789abcdef0123456789"
)

// awsEnv is a sandbox with keys of AWS that are worth nothing, before a server of S3 that
// knows the real ones and verifies signatures. Its clock is ahead.
func awsEnv(t *testing.T, version string, inject policy.AWSInject, ahead time.Duration) (*netEnv, *origin) {
	t.Helper()
	w := newNetEnv(t)
	src := &rotating{}
	src.set(map[string]string{"accessKeyId": awsID, "secretAccessKey": awsSecret})
	w.broker = credential.New(credential.Options{
		Sources: map[string]credential.Source{"aws": src}, Bound: func(string, string, uint16) bool { return true },
	})
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		d.RuleType = "egressAuth"
		if in.Request != nil {
			d.Inject = []policy.Injection{{Credential: "aws", Inject: policy.Inject{AWS: &inject}}}
		}
		return d
	})
	o := w.origin("s3.example.test", version, true)
	clock := time.Now().Add(ahead)
	server := gofakes3.New(s3mem.New(), gofakes3.WithV4Auth(map[string]string{awsID: awsSecret}), gofakes3.WithTimeSource(gofakes3.FixedTimeSource(clock))).Server()
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
		server.ServeHTTP(w, r)
	})
	return w, o
}

// sdk is AWS's own client in the sandbox.
func sdk(w *netEnv, o *origin, version string) *s3.Client {
	return s3.New(s3.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(o.url("https", "")), UsePathStyle: true,
		HTTPClient: w.agent(version, true, w.steer, false),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDPLACEHOLDER", SecretAccessKey: "placeholder"}, nil
		}),
		RetryMaxAttempts: 1,
	})
}

// AWS's SDK in a sandbox works with keys that are worth nothing: what it signs, in headers,
// in presigned URLs and with bodies in chunks, is signed anew.
func TestAWS(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w, o := awsEnv(t, version, policy.AWSInject{Service: "s3", Region: "eu-central-1"}, 0)
			c := sdk(w, o, version)
			ctx := t.Context()
			_, err := c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String("bucket")})
			must.OK(t, err)
			data := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
			for key, body := range map[string]io.Reader{
				"seekable":        bytes.NewReader(data),
				"a name (ü!)+&=~": bytes.NewReader(data),
				"stream":          struct{ io.Reader }{bytes.NewReader(data)}, // sent with a trailing checksum
				"empty":           bytes.NewReader(nil),
			} {
				in := &s3.PutObjectInput{Bucket: aws.String("bucket"), Key: &key, Body: body, ContentType: aws.String("text/plain"), Metadata: map[string]string{"note": "a  b"}}
				if key == "stream" {
					in.ContentLength, in.ChecksumAlgorithm = aws.Int64(int64(len(data))), types.ChecksumAlgorithmCrc32c
				}
				if _, err := c.PutObject(ctx, in); err != nil {
					t.Fatalf("%s: %v", key, err)
				}
				got, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bucket"), Key: &key})
				must.OK(t, err)
				b, err := io.ReadAll(got.Body)
				if want := data[:*got.ContentLength]; err != nil || !bytes.Equal(b, want) || key != "empty" && len(b) != len(data) {
					t.Errorf("%s: %v, %d bytes", key, err, len(b))
				}
				signed, err := s3.NewPresignClient(c).PresignGetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("bucket"), Key: &key, ResponseContentType: aws.String("a/b")})
				must.OK(t, err)
				resp, body := get(t, w.agent(version, true, w.steer, false), signed.URL)
				if resp.StatusCode != 200 || len(body) != len(b) {
					t.Errorf("presigned, %s: %d, %d bytes", key, resp.StatusCode, len(body))
				}
			}
			list, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String("bucket"), Prefix: aws.String("a name ("), Delimiter: aws.String("/")})
			if err != nil || len(list.Contents) != 1 {
				t.Errorf("list: %v %+v", err, list)
			}
			// It is this that makes the difference.
			w.policy(w.allow)
			if _, err := c.ListBuckets(ctx, &s3.ListBucketsInput{}); err == nil || !strings.Contains(err.Error(), "InvalidAccessKeyId") {
				t.Errorf("without the credential: %v", err)
			}
		})
	}
}

// A request that may not be signed is denied, and one that cannot be is refused, with the
// reason.
func TestAWSRefusals(t *testing.T) {
	t.Parallel()
	w, o := awsEnv(t, "h1", policy.AWSInject{Service: "s3", Region: "eu-central-1"}, 0)
	var reached int
	o.handle("/reached", func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			reached++
		}
	})
	client := w.agent("h1", true, w.steer, false)
	mine := &sigv4.Keys{ID: "AKIDPLACEHOLDER", Secret: "placeholder"}
	form := sigv4.Form{Algorithm: sigv4.V4, Service: "s3", Region: "eu-central-1"}
	for _, tt := range []struct {
		name    string
		change  func(*sigv4.Form, *http.Request) (payload string)
		status  int
		because string
	}{
		{"another service", func(f *sigv4.Form, _ *http.Request) string { f.Service = "iam"; return sigv4.Empty }, 403, "signed for the service iam, and its rule is for s3"},
		{"another region", func(f *sigv4.Form, _ *http.Request) string { f.Region = "us-east-1"; return sigv4.Empty }, 403, "signed for the region us-east-1"},
		{"SigV4a for all regions", func(f *sigv4.Form, _ *http.Request) string {
			f.Algorithm, f.Region = sigv4.V4a, "*"
			return sigv4.Empty
		}, 403, "signed for the region *"},
		{"an unknown payload", func(_ *sigv4.Form, r *http.Request) string {
			r.Header.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-EVENTS")
			return sigv4.Empty
		}, 400, "STREAMING-AWS4-HMAC-SHA256-EVENTS cannot be signed anew"},
		{"a form with keys of the sandbox's own", func(_ *sigv4.Form, r *http.Request) string {
			r.Method = "POST"
			r.Header["Content-Type"] = []string{"Multipart/Form-Data; boundary=x"}
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("--x--\r\n")), 7
			return sigv4.Unsigned
		}, 403, "a form of parts has its signature in it"},
		{"chunks that are none", func(_ *sigv4.Form, r *http.Request) string {
			r.Header.Set("X-Amz-Content-Sha256", sigv4.Chunked)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("no chunks")), 9
			return sigv4.Chunked
		}, 400, "not aws-chunked"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), "PUT", o.url("https", "/reached"), nil)
			must.OK(t, err)
			f := form
			payload := tt.change(&f, r)
			_, err = mine.Sign(r, f, payload, time.Now())
			must.OK(t, err)
			resp, err := client.Do(r)
			must.OK(t, err)
			if body := text(t, resp); resp.StatusCode != tt.status || !strings.Contains(body, tt.because) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
	resp, body := get(t, client, o.url("https", "/reached?X-Amz-Algorithm=AWS4-HMAC-SHA256"))
	if resp.StatusCode != 403 || !strings.Contains(body, "configure the SDK with any keys") || reached != 0 {
		t.Errorf("%d %s, %d have left", resp.StatusCode, body, reached)
	}
}

// The chunks of a body are signed anew as it passes; and a body that has to be hashed is,
// up to a bound.
func TestAWSBodies(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		w, o := awsEnv(t, version, policy.AWSInject{}, 0)
		var got *http.Request
		var body string
		o.handle("/b/", func(_ http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got, body = r, string(b)
		})
		client := w.agent(version, true, w.steer, false)
		mine, real := &sigv4.Keys{ID: "AKIDPLACEHOLDER", Secret: "placeholder"}, &sigv4.Keys{ID: awsID, Secret: awsSecret}
		data := strings.Repeat("0123456789abcdef", 5000)
		zero := strings.Repeat("0", 64)
		plain := fmt.Sprintf("%x;chunk-signature=%s\r\n%s\r\n0;chunk-signature=%[2]s\r\nx-amz-checksum-crc32c:AAAAAA==\r\nx-amz-trailer-signature:%[2]s\r\n\r\n", len(data), zero, data)
		room := func(int64) error { return nil }

		r, err := http.NewRequestWithContext(t.Context(), "PUT", o.url("https", "/b/o"), nil)
		must.OK(t, err)
		f := sigv4.Form{Algorithm: sigv4.V4, Service: "s3", Region: "eu-central-1", Headers: []string{"content-length"}}
		r.ContentLength = int64(len(plain))
		r.Header.Set("X-Amz-Content-Sha256", sigv4.ChunkedTrailer)
		r.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32c")
		now := time.Now()
		seed, err := mine.Sign(r, f, sigv4.ChunkedTrailer, now)
		must.OK(t, err)
		r.Body = mine.NewChunks(io.NopCloser(strings.NewReader(plain)), f, seed, true, now, room)
		resp, err := client.Do(r)
		must.OK(t, err)
		if text(t, resp); resp.StatusCode != 200 {
			t.Fatalf("%s: %d", version, resp.StatusCode)
		}
		// The upstream signs what it got itself.
		at, err := time.Parse("20060102T150405Z", got.Header.Get("X-Amz-Date"))
		must.OK(t, err)
		again := got.Clone(t.Context())
		seed, err = real.Sign(again, f, sigv4.ChunkedTrailer, at)
		must.OK(t, err)
		if again.Header.Get("Authorization") != got.Header.Get("Authorization") {
			t.Errorf("%s: the head is signed %s, want %s", version, got.Header.Get("Authorization"), again.Header.Get("Authorization"))
		}
		want, err := io.ReadAll(real.NewChunks(io.NopCloser(strings.NewReader(plain)), f, seed, true, at, room))
		if err != nil || body != string(want) {
			t.Errorf("%s: %v: the chunks are not signed with the real keys", version, err)
		}

		// SDKs send no hash to services other than S3.
		for size, status := range map[int]int{1 << 20: 200, 16<<20 + 1: 413} {
			r, err := http.NewRequestWithContext(t.Context(), "POST", o.url("https", "/b/"), io.MultiReader(strings.NewReader(strings.Repeat("x", size))))
			must.OK(t, err)
			f := sigv4.Form{Algorithm: sigv4.V4, Service: "dynamodb", Region: "eu-central-1"}
			_, err = mine.Sign(r, f, sigv4.Empty, time.Now())
			must.OK(t, err)
			resp, err := client.Do(r)
			must.OK(t, err)
			if text := text(t, resp); resp.StatusCode != status || status == 413 && !strings.Contains(text, "send X-Amz-Content-Sha256") {
				t.Errorf("%s: %d bytes: %d %s", version, size, resp.StatusCode, text)
			}
			if status == 200 {
				at, err := time.Parse("20060102T150405Z", got.Header.Get("X-Amz-Date"))
				must.OK(t, err)
				again := got.Clone(t.Context())
				_, err = real.Sign(again, f, bodies.Digest([]byte(body)), at)
				must.OK(t, err)
				if len(body) != size || again.Header.Get("Authorization") != got.Header.Get("Authorization") {
					t.Errorf("%s: a body without a hash: %d bytes, signed %s, want %s", version, len(body), got.Header.Get("Authorization"), again.Header.Get("Authorization"))
				}
			}
		}
	}
}

// A clock that is off is told to the operator by the name of the credential.
func TestAWSClock(t *testing.T) {
	t.Parallel()
	w, o := awsEnv(t, "h1", policy.AWSInject{}, time.Hour)
	_, err := sdk(w, o, "h1").ListBuckets(t.Context(), &s3.ListBucketsInput{})
	var refused interface{ ErrorCode() string }
	if !errors.As(err, &refused) || refused.ErrorCode() != "RequestTimeTooSkewed" {
		t.Errorf("the client is told %v", err)
	}
	_, completions := w.settled(t)
	for _, c := range completions {
		if !strings.Contains(c.Message, `credential "aws": the upstream refused what was signed with it (this host's clock is `) {
			t.Errorf("completed with %q", c.Message)
		}
	}
}
