package sallyport.team.buckets

import data.sallyport.library.storage

deny contains "the permission in a query is somebody else's" if storage.presigned

deny contains "only the buckets of this policy, to read or to write" if {
	input.request
	storage.provider
	not storage.presigned
	not meant
}

meant if {
	reading
	storage.bucket in data.buckets.read
}

meant if {
	storage.write
	storage.bucket in data.buckets.write
}

reading if storage.read

reading if storage.list

# Public data of S3's needs no credential, and so no rule in sallyport.yaml.
allow contains {"rule": "public-data", "reason": "public data may be read"} if {
	input.phase in {"dns", "connect"}
	input.destination.host == "acme-public.s3.eu-central-1.amazonaws.com"
}

allow contains {"rule": "public-data", "reason": "public data may be read"} if {
	storage.provider == "s3"
	meant
}
