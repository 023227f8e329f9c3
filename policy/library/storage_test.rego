package sallyport.library.storage_test

import data.sallyport.library.storage
import data.sallyport.testing

told(given) := {name |
	some name, holds in {
		"read": {1 | storage.read with input as given},
		"list": {1 | storage.list with input as given},
		"write": {1 | storage.write with input as given},
		"remove": {1 | storage.remove with input as given},
	}
	count(holds) > 0
}

objects := [
	["GET", "https://s3.us-east-1.amazonaws.com/acme-data/a/b.txt", "read", "s3/acme-data", "a/b.txt"],
	["GET", "https://s3.amazonaws.com/acme-data/a?versionId=1", "read", "s3/acme-data", "a"],
	["HEAD", "https://acme-data.s3.eu-central-1.amazonaws.com/a?x-id=HeadObject", "read", "s3/acme-data", "a"],
	["GET", "https://acme.data.s3.amazonaws.com/a", "read", "s3/acme.data", "a"],
	["GET", "https://acme-data.s3-us-west-2.amazonaws.com/a", "read", "s3/acme-data", "a"],
	["GET", "https://acme-data.s3.dualstack.us-east-1.amazonaws.com/a", "read", "s3/acme-data", "a"],
	["GET", "https://acme-data.s3-accelerate.amazonaws.com/a", "read", "s3/acme-data", "a"],
	["GET", "https://s3-fips.us-gov-west-1.amazonaws.com/acme-data/a", "read", "s3/acme-data", "a"],
	["PUT", "https://acme-data.s3.eu-central-1.amazonaws.com/a/b", "write", "s3/acme-data", "a/b"],
	["PUT", "https://acme-data.s3.eu-central-1.amazonaws.com/a?partNumber=1&uploadId=x", "write", "s3/acme-data", "a"],
	["POST", "https://acme-data.s3.eu-central-1.amazonaws.com/a?uploads", "write", "s3/acme-data", "a"],
	["DELETE", "https://acme-data.s3.eu-central-1.amazonaws.com/a", "remove", "s3/acme-data", "a"],
	["GET", "https://storage.googleapis.com/acme_data/a/b", "read", "gcs/acme_data", "a/b"],
	["GET", "https://acme-data.storage.googleapis.com/a", "read", "gcs/acme-data", "a"],
	["PUT", "https://storage.googleapis.com/acme-data/a", "write", "gcs/acme-data", "a"],
	["GET", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a?alt=media", "read", "gcs/acme-data", "a"],
	["GET", "https://storage.googleapis.com/download/storage/v1/b/acme-data/o/a?alt=media", "read", "gcs/acme-data", "a"],
	["DELETE", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a", "remove", "gcs/acme-data", "a"],
	["GET", "https://acme.blob.core.windows.net/data/a/b", "read", "azure/acme/data", "a/b"],
	["GET", "https://acme-secondary.blob.core.windows.net/data/a?snapshot=x", "read", "azure/acme/data", "a"],
	["PUT", "https://acme.blob.core.windows.net/data/a?comp=block&blockid=x", "write", "azure/acme/data", "a"],
	["DELETE", "https://acme.blob.core.windows.net/data/a", "remove", "azure/acme/data", "a"],
]

# Names with slashes: GCS's JSON API has no other way to write them.
encoded := [
	["GET", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2Fb.csv?alt=media", "read", "gcs/acme-data", "a/b.csv"],
	["GET", "https://storage.googleapis.com/download/storage/v1/b/acme-data/o/a%2fb%2fc?alt=media", "read", "gcs/acme-data", "a/b/c"],
	["DELETE", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2Fb", "remove", "gcs/acme-data", "a/b"],
	["GET", "https://s3.us-east-1.amazonaws.com/acme-data/a%2Fb.txt", "read", "s3/acme-data", "a/b.txt"],
	["PUT", "https://acme.blob.core.windows.net/data/a%2Fb", "write", "azure/acme/data", "a/b"],
]

test_encoded_names if {
	every case in encoded {
		[method, url, what, bucket, object] := case
		every given in testing.readings(testing.request(method, url, {})) {
			told(given) == {what}
			storage.bucket == bucket with input as given
			storage.object == object with input as given
		}
	}
}

# What a bucket or a verb would be if it were decoded is neither.
test_encoded_otherwise if {
	every case in [
		["GET", "https://storage.googleapis.com/storage/v1/b/acme-data%2Fo/a"],
		["GET", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2Facl"],
		["DELETE", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2Facl%2FallUsers"],
		["GET", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2FrewriteTo%2Fb%2Fother%2Fo%2Fa"],
		["GET", "https://storage.googleapis.com/acme-data%2Fa"],
		["GET", "https://s3.us-east-1.amazonaws.com/acme-data%2Fa"],
		["GET", "https://acme.blob.core.windows.net/data%2Fa"],
	] {
		[method, url] := case
		given := testing.request(method, url, {})
		told(given) == set()
	}
}

containers := [
	["GET", "https://acme-data.s3.eu-central-1.amazonaws.com/?list-type=2&prefix=a", "list", "s3/acme-data"],
	["GET", "https://s3.eu-central-1.amazonaws.com/acme-data?list-type=2", "list", "s3/acme-data"],
	["POST", "https://acme-data.s3.eu-central-1.amazonaws.com/?delete", "remove", "s3/acme-data"],
	["GET", "https://storage.googleapis.com/storage/v1/b/acme-data/o?prefix=a", "list", "gcs/acme-data"],
	["POST", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o?uploadType=media&name=a", "write", "gcs/acme-data"],
	["GET", "https://acme.blob.core.windows.net/data?restype=container&comp=list", "list", "azure/acme/data"],
]

test_tenancy_and_meaning if {
	every case in objects {
		[method, url, meaning, bucket, object] := case
		given := testing.request(method, url, {"headers": ["Accept", "X-Amz-Date"]})
		told(given) == {meaning}
		storage.bucket == bucket with input as given
		storage.object == object with input as given
	}
}

test_about_the_bucket_itself if {
	every case in containers {
		[method, url, meaning, bucket] := case
		given := testing.request(method, url, {"headers": ["Accept", "X-Amz-Date"]})
		told(given) == {meaning}
		storage.bucket == bucket with input as given
		not storage.object with input as given
	}
}

test_presigned if {
	every case in [
		["GET", "https://s3.amazonaws.com/acme-data/a?X-Amz-Algorithm=x&X-Amz-Signature=x"],
		["GET", "https://s3.amazonaws.com/acme-data/a?x-amz-signature=x"],
		["PUT", "https://s3.amazonaws.com/acme-data/a?AWSAccessKeyId=x&Signature=x&Expires=1"],
		["GET", "https://storage.googleapis.com/acme-data/a?X-Goog-Signature=x"],
		["PUT", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o?uploadType=resumable&upload_id=x"],
		["GET", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a?access_token=x"],
		["PUT", "https://acme.blob.core.windows.net/data/a?sv=x&sig=x"],
	] {
		[method, url] := case
		given := testing.request(method, url, {})
		storage.presigned with input as given
		told(given) == set()
	}
	not storage.presigned with input as testing.get("https://example.com/?sig=x")
}

test_a_second_bucket if {
	every header in ["X-Amz-Copy-Source", "X-Amz-Copy-Source-Range", "x-goog-copy-source", "X-Ms-Copy-Source"] {
		given := testing.put("https://s3.amazonaws.com/acme-data/a", {"headers": [header]})
		storage.copying with input as given
		told(given) == set()
	}
	given := testing.post("https://storage.googleapis.com/storage/v1/b/acme-data/o/a/rewriteTo/b/other/o/a", {})
	storage.copying with input as given
	told(given) == set()
}

test_who_may_read if {
	every header in ["X-Amz-Acl", "X-Amz-Grant-Read", "X-Goog-Acl"] {
		given := testing.put("https://s3.amazonaws.com/acme-data/a", {"headers": [header]})
		storage.sharing with input as given
		told(given) == set()
	}
}

test_nothing_else_is_told if {
	every case in [
		["GET", "https://s3.amazonaws.com/"],
		["GET", "https://s3.amazonaws.com/acme-data/a?acl"],
		["PUT", "https://s3.amazonaws.com/acme-data/a?tagging"],
		["GET", "https://s3.amazonaws.com/acme-data?policy"],
		["PUT", "https://s3.amazonaws.com/acme-data"],
		["POST", "https://s3.amazonaws.com/acme-data"],
		["POST", "https://s3.amazonaws.com/acme-data/a"],
		["DELETE", "https://s3.amazonaws.com/acme-data"],
		["GET", "https://s3.amazonaws.com/ACME-DATA/a"],
		["GET", "https://acme-data.s3.us-east-1.amazonaws.com.example.com/a"],
		["GET", "https://acme-1234.s3-accesspoint.us-east-1.amazonaws.com/a"],
		["GET", "https://s3-control.us-east-1.amazonaws.com/acme-data/a"],
		["GET", "https://storage.googleapis.com/storage/v1/b/acme-data"],
		["GET", "https://storage.googleapis.com/storage/v1/b/acme-data/iam"],
		["GET", "https://storage.googleapis.com/storage/v1/b?project=x"],
		["GET", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o/a"],
		["POST", "https://storage.googleapis.com/batch/storage/v1"],
		["POST", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o?predefinedAcl=publicRead&name=a"],
		["DELETE", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o/a"],
		["GET", "https://acme.blob.core.windows.net/?comp=list"],
		["GET", "https://acme.blob.core.windows.net/data"],
		["PUT", "https://acme.blob.core.windows.net/data?restype=container"],
		["PUT", "https://acme.blob.core.windows.net/data/a?comp=acl&x=y"],
		["GET", "https://acme.dfs.core.windows.net/data/a"],
		["PUT", "https://storage.googleapis.com/storage/v1/b/acme-data/o/a"],
		["PUT", "https://s3.amazonaws.com/acme-data/a?uploads"],
		["POST", "https://s3.amazonaws.com/acme-data?uploads"],
		["POST", "https://s3.amazonaws.com/acme-data/a?x-id=x"],
		["POST", "https://acme.blob.core.windows.net/data/a?uploads"],
		["POST", "https://storage.googleapis.com/storage/v1/b/acme-data/o"],
		["POST", "https://storage.googleapis.com/download/storage/v1/b/acme-data/o"],
		["POST", "https://storage.googleapis.com/upload/storage/v1/b/acme-data"],
		["POST", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o/a"],
		["PUT", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o"],
		["PUT", "https://acme.blob.core.windows.net/data"],
		["POST", "https://s3.amazonaws.com/acme-data/a?delete"],
		["PUT", "https://s3.amazonaws.com/acme-data?delete"],
		["POST", "https://storage.googleapis.com/storage/v1/b/acme-data/o?delete"],
	] {
		[method, url] := case
		told(testing.request(method, url, {})) == set()
	}
}

test_contact if {
	every host in ["s3.amazonaws.com", "acme-data.s3.us-east-1.amazonaws.com", "storage.googleapis.com", "acme.blob.core.windows.net"] {
		storage.contact with input as testing.lookup(host)
	}
	not storage.contact with input as testing.lookup("amazonaws.com")
	not storage.contact with input as testing.get("https://s3.amazonaws.com/acme-data/a")
}

test_hosts_of_ones_own if {
	own := {"minio.corp.example": "s3"}
	given := testing.get("https://minio.corp.example/acme-data/a")
	storage.read with input as given with data.library.storage.hosts as own
	storage.bucket == "s3/acme-data" with input as given with data.library.storage.hosts as own
	not storage.provider with input as given
}

# Nothing that is told otherwise is told of a request that brings a permission, names
# a second place, says who may read, or says anything that is not known.
test_whatever_it_is if {
	every case in array.concat(objects, containers) {
		joined := {true: "&", false: "?"}[contains(case[1], "?")]
		every key in ["X-Amz-Signature", "sig", "upload_id", "unknown"] {
			told(testing.request(case[0], concat("", [case[1], joined, key, "=x"]), {})) == set()
		}
		every header in ["X-Amz-Copy-Source", "X-Ms-Copy-Source", "X-Amz-Grant-Full-Control", "X-Goog-Acl"] {
			told(testing.request(case[0], case[1], {"headers": [header]})) == set()
		}
	}
}

test_one_provider_is_not_another if {
	every case in [
		["https://s3.amazonaws.com/storage/v1/b/acme-data/o/a", "s3/storage"],
		["https://acme-data.s3.amazonaws.com/o/rewriteTo/b", "s3/acme-data"],
	] {
		[url, bucket] := case
		told(testing.get(url)) == {"read"}
		storage.bucket == bucket with input as testing.get(url)
	}
	told(testing.put("https://s3.amazonaws.com/acme-data/a?comp=block", {})) == set()
	not storage.copying with input as testing.put("https://example.com/", {"headers": ["X-Amz-Copy-Source"]})
	not storage.sharing with input as testing.put("https://example.com/", {"headers": ["X-Amz-Acl"]})
}
