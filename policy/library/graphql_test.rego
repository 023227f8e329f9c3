package sallyport.library.graphql_test

import data.sallyport.library.graphql

asking(operations) := {"phase": "request", "request": {"method": "POST", "path": "/graphql", "body": {"graphql": {"operations": operations, "variables": {}}}}}

operation(type, fields) := {"type": type, "name": "", "fields": fields}

test_reads if {
	graphql.reads with input as asking([operation("query", ["viewer"])])
	graphql.reads with input as asking([operation("query", ["viewer"]), operation("query", ["node"])])
	not graphql.reads with input as asking([operation("mutation", ["viewer"])])
	not graphql.reads with input as asking([operation("query", ["viewer"]), operation("subscription", ["node"])])
	not graphql.reads with input as asking([])
	not graphql.reads with input as {"phase": "request", "request": {"method": "GET"}}
}

test_only if {
	graphql.only({"query"}, {"viewer", "node"}) with input as asking([operation("query", ["node", "viewer"])])
	graphql.only({"query", "mutation"}, {"star"}) with input as asking([operation("mutation", ["star"])])
	not graphql.only({"query"}, {"viewer"}) with input as asking([operation("query", ["node", "viewer"])])
	not graphql.only({"query"}, {"viewer"}) with input as asking([operation("mutation", ["viewer"])])
	not graphql.only({"query"}, {"viewer"}) with input as asking([operation("query", ["viewer"]), operation("query", ["__schema"])])
	not graphql.only({"query"}, {"viewer"}) with input as asking([])
	not graphql.only({"query"}, {"viewer"}) with input as {"phase": "connect"}
}
