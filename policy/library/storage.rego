# METADATA
# title: Cloud storage
# description: |
#   What a request means to Amazon S3, Google Cloud Storage and Azure Blob Storage:
#   whose bucket it is about, and whether it reads, lists, writes or removes.
#
#     allow contains {"rule": "storage"} if storage.contact
#
#     allow contains {"rule": "storage"} if {
#     	storage.read
#     	storage.bucket in {"s3/acme-data", "gcs/acme-data", "azure/acme/data"}
#     }
#
#   The hosts are everybody's: who only looks at them lets data out into anybody's
#   bucket. Every rule is about input. What is not recognised is undefined: write
#   what may pass, not what may not. A request that brings its own permission in the
#   query, as a presigned URL does, or that names a second bucket, is none of read,
#   list, write and remove; nor is one that changes who may read. Hosts of one's own
#   that speak S3's API, buckets in the path, are named in
#   data.library.storage.hosts, as {"minio.corp.example": "s3"}.
package sallyport.library.storage

# contact is the lookup of, and the connection to, a host of storage.
contact if {
	input.phase in {"dns", "connect"}
	provider
}

# Where a bucket is in a host's name. S3: "Virtual hosting of general purpose
# buckets", "Amazon S3 dual-stack endpoints", "Transfer Acceleration"; GCS: "Request
# endpoints"; Azure: "Naming and referencing containers, blobs, and metadata" and
# "Storage account overview".
hosts := [
	["s3", "path", `^s3(?:-fips)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-[0-9]+)?\.amazonaws\.com(?:\.cn)?$`],
	["s3", "host", `^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\.s3(?:-fips)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-[0-9]+)?\.amazonaws\.com(?:\.cn)?$`],
	["s3", "host", `^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\.s3-accelerate(?:\.dualstack)?\.amazonaws\.com$`],
	["gcs", "path", `^storage\.googleapis\.com$`],
	["gcs", "host", `^([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])\.storage\.googleapis\.com$`],
	["azure", "account", `^([a-z0-9]{3,24}?)(?:-secondary)?\.blob\.core\.windows\.net$`],
]

# place is what the host's name says: provider, style and the group of its pattern.
place := ["s3", "path", ""] if {
	data.library.storage.hosts[input.destination.host] == "s3"
} else := [name, style, concat("", array.slice(groups, 1, 2))] if {
	regex.match(`\.(?:amazonaws\.com|amazonaws\.com\.cn|googleapis\.com|blob\.core\.windows\.net)$`, input.destination.host) # most are none of them
	some [name, style, pattern] in hosts
	some groups in regex.find_all_string_submatch_n(pattern, input.destination.host, 1)
}

provider := place[0]

# json is a request of GCS's JSON API: "Request endpoints", "Objects". The name of
# an object with a slash in it is encoded there, and read from what was sent. One that
# would be something else about an object if it were decoded is none.
json := {"how": how, "bucket": bucket, "listing": listing, "object": name} if {
	place == ["gcs", "path", ""]
	some [_, how, bucket, listing, object] in regex.find_all_string_submatch_n(
		`^/(download/|upload/|)storage/v1/b/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:(/o)(?:/([^/]+))?)?$`,
		input.request.raw_path,
		1,
	)
	name := replace(object, "%2F", "/")
	not regex.match(`/(?:acl|iam|restore|rewriteTo|copyTo|moveTo|compose)(?:/|$)`, name)
}

# xml is a request of the API that S3 has and GCS speaks too. These first segments
# are other APIs of GCS.
xml := {"bucket": bucket, "object": object} if {
	place[1] == "path"
	some [_, bucket, object] in regex.find_all_string_submatch_n(
		`^/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(.*))?$`,
		input.request.path,
		1,
	)
	not elsewhere[provider][bucket]
}

xml := {"bucket": place[2], "object": trim_prefix(input.request.path, "/")} if place[1] == "host"

elsewhere := {"gcs": {"storage", "upload", "download", "batch", "discovery", "resumable"}}

# blob is a request of Azure's: "Blob service REST API". A blob of the root
# container, which has but one segment, is not told from a container.
blob := {"container": container, "object": object} if {
	provider == "azure"
	some [_, container, object] in regex.find_all_string_submatch_n(
		`^/(\$web|\$logs|[a-z0-9](?:-?[a-z0-9]){2,62})(?:/(.+))?$`,
		input.request.path,
		1,
	)
}

# bucket is whose data it is: s3/BUCKET, gcs/BUCKET or azure/ACCOUNT/CONTAINER.
bucket := sprintf("%s/%s", [provider, xml.bucket])

bucket := sprintf("gcs/%s", [json.bucket])

bucket := sprintf("azure/%s/%s", [place[2], blob.container])

# object is the name of what is in the bucket, and undefined for the bucket itself.
object := name if {
	name := replace(xml.object, "%2F", "/")
	name != ""
}

object := name if {
	name := json.object
	name != ""
}

object := name if {
	name := replace(blob.object, "%2F", "/")
	name != ""
}

# Keys of a query that bring a permission along. S3: "Authenticating Requests: Using
# Query Parameters"; GCS: "Signed URLs", "Resumable uploads" (who has the upload_id
# may write) and "Query parameters"; Azure: "Create a service SAS", "Create an
# account SAS", "Create a user delegation SAS".
permits := {
	"x-amz-algorithm", "x-amz-credential", "x-amz-signature", "x-amz-signedheaders", "x-amz-security-token",
	"awsaccesskeyid", "signature",
	"x-goog-algorithm", "x-goog-credential", "x-goog-signature", "x-goog-signedheaders", "googleaccessid",
	"upload_id", "access_token", "oauth_token", "key",
	"sig", "se", "sp", "sv", "sr", "ss", "srt", "si", "skoid", "sktid", "ske", "sks", "skt", "skv", "saoid", "suoid",
}

# presigned is a request whose query says who permits it: it is made with somebody
# else's rights, whatever credential goes with it.
presigned if {
	provider
	some key in input.request.query_keys
	lower(key) in permits
}

# copying is a request that reads what it writes from another place: "CopyObject"
# (S3), "x-goog-copy-source" (GCS), "Copy Blob" and "Put Block From URL" (Azure).
copying if {
	provider
	some name in input.request.headers
	regex.match(`(?i)^x-(amz|goog|ms)-copy-source`, name)
}

copying if {
	provider == "gcs"
	regex.match(`/(rewriteTo|copyTo|compose|moveTo)(/|$)`, input.request.path)
}

# sharing is a request that says who may read what it writes: "Access control list
# (ACL) overview" (S3), "x-goog-acl" (GCS).
sharing if {
	provider
	some name in input.request.headers
	regex.match(`(?i)^x-(amz|goog)-(acl|grant-.*)$`, name)
}

plain if {
	provider
	not presigned
	not copying
	not sharing
}

# only tells that a query has no keys but these.
only(keys) if {
	every key in input.request.query_keys {
		key in keys
	}
}

# rendering is the keys of a query that change how an answer looks, and not what it is.
rendering := {
	"x-id", "alt", "fields", "prettyPrint", "projection", "timeout",
	"response-cache-control", "response-content-disposition", "response-content-encoding",
	"response-content-language", "response-content-type", "response-expires",
}

versions := {"versionId", "versionid", "snapshot", "generation", "ifGenerationMatch", "ifMetagenerationMatch"}

# read gets one object. S3: "GetObject"; GCS: "Objects: get"; Azure: "Get Blob".
read if {
	plain
	object
	input.request.method in {"GET", "HEAD"}
	only(((rendering | versions) | {"partNumber"}))
	not json_upload
}

# list says what is in a bucket. S3: "ListObjectsV2"; GCS: "Objects: list"; Azure:
# "List Blobs", which also answers for the container's properties.
list if {
	plain
	bucket
	not object
	not json_bucket
	input.request.method in {"GET", "HEAD"}
	only(rendering | listing[provider])
	azure_container
}

listing := {
	"s3": {"list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner", "marker"},
	"gcs": {
		"list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "marker",
		"maxResults", "pageToken", "versions", "startOffset", "endOffset", "includeTrailingDelimiter", "matchGlob",
	},
	"azure": {"restype", "comp", "prefix", "delimiter", "marker", "maxresults", "include"},
}

azure_container if provider != "azure"

azure_container if {
	"restype" in input.request.query_keys
	"comp" in input.request.query_keys
}

# write puts one object. S3: "PutObject", "UploadPart", "CreateMultipartUpload",
# "CompleteMultipartUpload", and GCS's XML API likewise.
write if {
	plain
	xml
	object
	input.request.method == "PUT"
	only({"x-id", "partNumber", "uploadId"})
}

write if {
	plain
	xml
	object
	input.request.method == "POST"
	some key in input.request.query_keys
	key in {"uploads", "uploadId"}
	only({"x-id", "uploads", "uploadId"})
}

# GCS: "Objects: insert". Its name is in the query or the body.
write if {
	plain
	json.how == "upload/"
	json.listing == "/o"
	json.object == ""
	input.request.method == "POST"
	only(rendering | {"uploadType", "name", "contentEncoding", "ifGenerationMatch"})
}

# Azure: "Put Blob", "Put Block", "Put Block List", "Append Block". What comp says is
# in no input: it may also set the blob's properties, metadata, tags or lease.
write if {
	plain
	blob
	object
	input.request.method == "PUT"
	only({"comp", "blockid", "timeout"})
}

# remove takes objects away. S3: "DeleteObject", "AbortMultipartUpload",
# "DeleteObjects", whose body says which.
remove if {
	plain
	object
	json_object
	input.request.method == "DELETE"
	only({"x-id", "uploadId", "timeout", "deletetype"} | versions)
}

remove if {
	plain
	xml.object == ""
	input.request.method == "POST"
	"delete" in input.request.query_keys
	only({"x-id", "delete"})
}

json_object if not json

json_object if json.how == ""

json_upload if json.how == "upload/"

# json_bucket is what is no list of objects: the bucket's own properties.
json_bucket if json.listing == ""

json_bucket if json.how != ""
