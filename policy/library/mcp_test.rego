package sallyport.library.mcp_test

import data.sallyport.library.mcp

with_body(json) := {"phase": "request", "request": {"method": "POST", "path": "/mcp", "body": {"json": json}}}

call(tool) := {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}

test_calls if {
	mcp.only({"search"}) with input as with_body(call("search"))
	mcp.only({"search", "fetch"}) with input as with_body([call("search"), call("fetch")])
	mcp.tools == {"search", "fetch"} with input as with_body([call("search"), call("fetch")])
}

test_other_calls if {
	not mcp.only({"search"}) with input as with_body(call("delete"))
	not mcp.only({"search"}) with input as with_body([call("search"), call("delete")])
	not mcp.only({"search"}) with input as with_body(call("Search"))
	not mcp.only({"search"}) with input as with_body(call(["search"]))
	not mcp.only({"search"}) with input as with_body(object.remove(call("search"), ["params"]))
	not mcp.only(set()) with input as with_body(call("search"))
}

test_agreement if {
	every method in mcp.harmless {
		mcp.only(set()) with input as with_body({"jsonrpc": "2.0", "method": method})
	}
	mcp.only(set()) with input as with_body({"jsonrpc": "2.0", "id": 1, "result": {}})
	mcp.only(set()) with input as with_body({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}})
}

test_other_methods if {
	every method in ["resources/read", "prompts/get", "completion/complete", "tools/call2", "TOOLS/CALL", "", 1] {
		not mcp.only({"search"}) with input as with_body({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "search"}})
	}
}

test_other_forms if {
	every message in [
		object.remove(call("search"), ["jsonrpc"]),
		object.union(call("search"), {"jsonrpc": "1.0"}),
		object.union(call("search"), {"Method ": "tools/call"}),
		object.union(call("search"), {"result": {}}),
		{"jsonrpc": "2.0", "id": 1, "result": {}, "params": {"name": "delete"}},
		{"jsonrpc": "2.0", "id": 1},
		{},
		"ping",
		null,
		[],
		[[call("search")]],
		[call("search"), "ping"],
	] {
		not mcp.only({"search"}) with input as with_body(message)
	}
}

test_no_body if {
	not mcp.only({"search"}) with input as {"phase": "request", "request": {"method": "POST", "path": "/mcp"}}
	not mcp.only({"search"}) with input as {"phase": "connect"}
}
