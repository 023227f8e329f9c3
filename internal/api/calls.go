package api

import (
	"context"
	"io"
	"net/http"

	"sallyport/audit/retention"
	"sallyport/internal/recorded"
	"sallyport/policy"
	"sallyport/policy/approval"
	"sallyport/sandbox/client"
)

// Calls of operators by a [client.Client]. [client.Call.Do] makes the request;
// the names in braces are its last arguments.
var (
	GetStatus       = client.Call[client.None, Status]{Method: http.MethodGet, Path: "/v1/status"}
	Reload          = client.Call[client.None, Status]{Method: http.MethodPost, Path: "/v1/reload"}
	Shutdown        = client.Action[client.None]{Method: http.MethodPost, Path: "/v1/shutdown"}
	Explain         = client.Call[Question, policy.Explanation]{Method: http.MethodPost, Path: "/v1/policy/explain"}
	ExplainDecision = client.Call[client.None, recorded.Explanation]{Method: http.MethodGet, Path: "/v1/policy/explain/{decision}"}
	ListLimits      = client.List[Limit]("/v1/limits")
	ListHolds       = client.List[retention.Hold]("/v1/audit/holds")
	AddHold         = client.Call[HoldReason, retention.Hold]{Method: http.MethodPut, Path: "/v1/audit/holds/{name}"}
	ReleaseHold     = client.Action[HoldReason]{Method: http.MethodPost, Path: "/v1/audit/holds/{name}/release"}
	DeleteAudit     = client.Call[DeleteRequest, retention.Plan]{Method: http.MethodPost, Path: "/v1/audit/deletions"}
	TestSink        = client.Call[client.None, SinkTest]{Method: http.MethodPost, Path: "/v1/audit/sinks/{name}/test"}
	ResetLimit      = client.Call[ResetRequest, ResetResult]{Method: http.MethodPost, Path: "/v1/limits/{name}/reset"}
	ListApprovals   = client.Call[client.None, ApprovalList]{Method: http.MethodGet, Path: "/v1/approvals"}
	AnswerApproval  = client.Call[approval.Answer, approval.Request]{Method: http.MethodPost, Path: "/v1/approvals/{id}"}
	ListSecrets     = client.List[Secret]("/v1/secrets")
	SecretHistory   = client.Call[client.None, []SecretChange]{Method: http.MethodGet, Path: "/v1/secrets/{name}/history"}
	RotateKey       = client.Call[client.None, Rotation]{Method: http.MethodPost, Path: "/v1/secrets-key/rotation"}
	SetSecret       = client.Action[map[string]string]{Method: http.MethodPut, Path: "/v1/secrets/{name}"}
	RemoveSecret    = client.Action[client.None]{Method: http.MethodDelete, Path: "/v1/secrets/{name}"}
	ListKeys        = client.List[Key]("/v1/keys")
	CreateKey       = client.Call[KeyRequest, KeyText]{Method: http.MethodPut, Path: "/v1/keys/{name}"}
	RemoveKey       = client.Action[client.None]{Method: http.MethodDelete, Path: "/v1/keys/{name}"}
	ListClients     = client.List[ProxyClient]("/v1/clients")
	AddClient       = client.Call[ClientRequest, ClientToken]{Method: http.MethodPut, Path: "/v1/clients/{name}"}
	RemoveClient    = client.Action[client.None]{Method: http.MethodDelete, Path: "/v1/clients/{name}"}
	ClientRoot      = client.Call[client.None, []byte]{Method: http.MethodGet, Path: "/v1/clients/{name}/ca"}
)

// WatchApprovals hands the lists over now and whenever they have changed, until ctx is
// done or see returns an error. It returns io.ErrUnexpectedEOF when the daemon has ended.
func WatchApprovals(ctx context.Context, c *client.Client, see func(ApprovalList) error) error {
	if err := client.Lines(ctx, c, "/v1/approvals?watch=true", see); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}
