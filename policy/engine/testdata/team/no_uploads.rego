# Nothing larger than 10 MiB leaves, and nothing whose size is not said.
package sallyport.team.uploads

limit_bytes := 10485760 # 10 MiB

deny contains sprintf("uploads of more than %d bytes are not allowed", [limit_bytes]) if {
	input.request.size > limit_bytes
}

deny contains "uploads must say their size" if {
	input.request.method in data.uploads.methods
	input.request.size < 0
}
