package sallyport.team.buckets_test

import data.sallyport.team.buckets
import data.sallyport.testing

read := testing.get("https://storage.googleapis.com/acme-data/a/b.csv")

public := testing.get("https://acme-public.s3.eu-central-1.amazonaws.com/a.csv")

test_reading if {
	every given in [
		read,
		public,
		testing.get("https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2Fb.csv?alt=media"),
		testing.get("https://acme.blob.core.windows.net/data?restype=container&comp=list"),
	] {
		count(buckets.deny) == 0 with input as given
	}
}

# A name with slashes, in every reading of it.
test_names_with_slashes if {
	every given in testing.readings(testing.get("https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2Fb.csv?alt=media")) {
		count(buckets.deny) == 0 with input as given
	}
	every url in [
		"https://storage.googleapis.com/storage/v1/b/acme-data/o/a%2Facl",
		"https://storage.googleapis.com/storage/v1/b/evil/o/a%2Fb.csv",
		"https://storage.googleapis.com/acme-data%2Fa",
	] {
		count(buckets.deny) == 1 with input as testing.get(url)
	}
}

test_writing if {
	count(buckets.deny) == 0 with input as testing.put("https://storage.googleapis.com/acme-results/a", {})
	every given in [
		testing.put("https://storage.googleapis.com/acme-data/a", {}),
		testing.put("https://storage.googleapis.com/evil/a", {}),
		testing.put("https://storage.googleapis.com/acme-results/a", {"headers": ["X-Goog-Copy-Source"]}),
		testing.delete("https://storage.googleapis.com/acme-results/a"),
		testing.get("https://storage.googleapis.com/storage/v1/b/acme-data/iam"),
	] {
		count(buckets.deny) == 1 with input as given
	}
}

test_presigned if {
	given := testing.get("https://storage.googleapis.com/acme-data/a?X-Goog-Signature=x")
	buckets.deny == {"the permission in a query is somebody else's"} with input as given
}

test_public_data if {
	host := "acme-public.s3.eu-central-1.amazonaws.com"
	every given in [public, testing.lookup(host), testing.connect(host, 443, "tls")] {
		count(buckets.allow) == 1 with input as given
	}
	count(buckets.allow) == 0 with input as testing.get("https://evil.s3.eu-central-1.amazonaws.com/a.csv")
	count(buckets.allow) == 0 with input as read
}

# What comes of it all under sallyport.yaml.
test_decisions if {
	every decision in testing.decisions([read, public]) {
		decision.action == "allow"
	}
	every decision in testing.decisions([
		testing.put("https://storage.googleapis.com/evil/a", {}),
		testing.put("https://acme-public.s3.eu-central-1.amazonaws.com/a", {}),
		testing.lookup("evil.s3.eu-central-1.amazonaws.com"),
	]) {
		decision.action == "deny"
	}
}
