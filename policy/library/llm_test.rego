package sallyport.library.llm_test

import data.sallyport.library.llm
import data.sallyport.testing

told(given) := {name |
	some name, holds in {
		"inference": {1 | llm.inference with input as given},
		"catalogue": {1 | llm.catalogue with input as given},
		"retained": {1 | llm.retained with input as given},
		"administration": {1 | llm.administration with input as given},
	}
	count(holds) > 0
}

# An inference profile of Bedrock's has a slash in its ARN.
test_encoded_models if {
	arn := "arn:aws:bedrock:us-east-1:111122223333:inference-profile/us.amazon.nova-pro-v1:0"
	encoded := replace(replace(arn, ":", "%3A"), "/", "%2F")
	url := sprintf("https://bedrock-runtime.us-east-1.amazonaws.com/model/%s/converse", [encoded])
	every given in testing.readings(testing.post(url, {})) {
		llm.inference with input as given
		llm.model == arn with input as given
	}
	not llm.inference with input as testing.post("https://bedrock-runtime.us-east-1.amazonaws.com/model/a%2Fb/converse", {})
}

test_inference if {
	every case in [
		["https://api.openai.com/v1/chat/completions", "openai"],
		["https://api.openai.com/v1/responses", "openai"],
		["https://api.openai.com/v1/embeddings", "openai"],
		["https://api.openai.com/v1/audio/transcriptions", "openai"],
		["https://api.anthropic.com/v1/messages", "anthropic"],
		["https://api.anthropic.com/v1/messages/count_tokens?beta=true", "anthropic"],
		["https://generativelanguage.googleapis.com/v1beta/models/gemini-2.0-flash:streamGenerateContent?alt=sse", "google"],
		["https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", "google"],
		["https://us-central1-aiplatform.googleapis.com/v1/projects/acme/locations/us-central1/publishers/google/models/gemini-2.0-flash:generateContent", "vertex"],
		["https://aiplatform.googleapis.com/v1/projects/acme/locations/global/publishers/anthropic/models/claude-sonnet-4@20250514:streamRawPredict", "vertex"],
		["https://acme.openai.azure.com/openai/deployments/gpt4/chat/completions?api-version=2024-10-21", "azure"],
		["https://acme.openai.azure.com/openai/v1/responses", "azure"],
		["https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-3-sonnet-20240229-v1%3A0/invoke", "bedrock"],
		["https://bedrock-runtime.eu-central-1.amazonaws.com/model/amazon.nova-pro-v1:0/converse-stream", "bedrock"],
		["https://api.mistral.ai/v1/chat/completions", "mistral"],
		["https://codestral.mistral.ai/v1/fim/completions", "mistral"],
	] {
		[url, provider] := case
		told(testing.post(url, {})) == {"inference"}
		llm.provider == provider with input as testing.post(url, {})
		told(testing.get(url)) == set()
	}
}

test_models_in_the_path if {
	every url, model in {
		"https://generativelanguage.googleapis.com/v1/models/gemini-2.0-flash:generateContent": "gemini-2.0-flash",
		"https://aiplatform.googleapis.com/v1/projects/acme/locations/global/publishers/google/models/gemini-2.5-pro:predict": "gemini-2.5-pro",
		"https://acme.openai.azure.com/openai/deployments/gpt4/embeddings": "gpt4",
		"https://bedrock-runtime.us-east-1.amazonaws.com/model/amazon.nova-pro-v1:0/converse": "amazon.nova-pro-v1:0",
	} {
		llm.model == model with input as testing.post(url, {})
	}
	not llm.model with input as testing.post("https://api.openai.com/v1/chat/completions", {})
}

test_whose_it_is if {
	llm.resource == "acme" with input as testing.post("https://acme.openai.azure.com/openai/v1/responses", {})
	llm.project == "acme" with input as testing.post("https://aiplatform.googleapis.com/v1/projects/acme/locations/global/publishers/google/models/x:predict", {})
	not llm.resource with input as testing.post("https://api.openai.com/v1/responses", {})
	not llm.project with input as testing.post("https://api.openai.com/v1/projects/acme/x", {})
}

test_catalogue if {
	every url in [
		"https://api.openai.com/v1/models",
		"https://api.openai.com/v1/models/gpt-4o",
		"https://api.anthropic.com/v1/models",
		"https://generativelanguage.googleapis.com/v1beta/models/gemini-2.0-flash",
		"https://api.mistral.ai/v1/models",
	] {
		told(testing.get(url)) == {"catalogue"}
		told(testing.delete(url)) == set()
	}
}

test_retained if {
	every url in [
		"https://api.openai.com/v1/files",
		"https://api.openai.com/v1/fine_tuning/jobs",
		"https://api.openai.com/v1/responses/resp_1",
		"https://api.openai.com/v1/vector_stores/vs_1/files",
		"https://api.anthropic.com/v1/messages/batches",
		"https://api.anthropic.com/v1/files/file_1/content",
		"https://generativelanguage.googleapis.com/upload/v1beta/files",
		"https://generativelanguage.googleapis.com/v1beta/cachedContents",
		"https://acme.openai.azure.com/openai/files",
		"https://bedrock-runtime.us-east-1.amazonaws.com/async-invoke",
		"https://api.mistral.ai/v1/fine_tuning/jobs",
	] {
		told(testing.post(url, {})) == {"retained"}
		told(testing.get(url)) == {"retained"}
	}
}

test_administration if {
	every url in [
		"https://api.openai.com/v1/organization/admin_api_keys",
		"https://api.anthropic.com/v1/organizations/api_keys",
		"https://bedrock.us-east-1.amazonaws.com/guardrails",
		"https://management.azure.com/subscriptions/x",
	] {
		told(testing.post(url, {})) == {"administration"}
	}
	told(testing.lookup("management.azure.com")) == set()
}

test_nothing_else_is_told if {
	every url in [
		"https://api.openai.com/v1/chat/completions/",
		"https://api.openai.com.example.com/v1/chat/completions",
		"https://api.openai.com/v1/unknown",
		"https://api.anthropic.com/v1/complete/x",
		"https://openai.azure.com/openai/v1/responses",
		"https://x.acme.openai.azure.com/openai/v1/responses",
		"https://bedrock-runtime.us-east-1.amazonaws.com/guardrail/x/version/1/apply",
		"https://aiplatform.googleapis.com/v1/projects/acme/locations/global/endpoints",
	] {
		count(told(testing.post(url, {})) - {"retained"}) == 0
	}
}

test_contact if {
	llm.contact with input as testing.lookup("api.openai.com")
	llm.contact with input as testing.connect("acme.openai.azure.com", 443, "tls")
	not llm.contact with input as testing.lookup("openai.com")
	not llm.contact with input as testing.get("https://api.openai.com/v1/models")
}

test_hosts_of_ones_own if {
	own := {"vllm.corp.example": "openai"}
	given := testing.post("https://vllm.corp.example/v1/chat/completions", {})
	llm.inference with input as given with data.library.llm.hosts as own
	not llm.inference with input as given
}
