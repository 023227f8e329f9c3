package sallyport.team.models_test

import data.sallyport.team.models
import data.sallyport.testing

gemini(model) := testing.post(sprintf("https://generativelanguage.googleapis.com/v1beta/models/%s:generateContent", [model]), {})

test_inference if {
	every given in [
		testing.post("https://api.openai.com/v1/responses", {}),
		testing.post("https://api.anthropic.com/v1/messages", {}),
		testing.get("https://api.openai.com/v1/models"),
		gemini("gemini-2.5-pro"),
	] {
		count(models.deny) == 0 with input as given
	}
}

test_nothing_else if {
	every given in [
		testing.post("https://api.openai.com/v1/files", {}),
		testing.get("https://api.openai.com/v1/organization/users"),
		testing.post("https://api.anthropic.com/v1/messages/batches", {}),
		testing.delete("https://api.openai.com/v1/models/ft-1"),
	] {
		models.deny == {"inference and the list of models only"} with input as given
	}
	count(models.deny) == 0 with input as testing.connect("api.openai.com", 443, "tls")
	count(models.deny) == 0 with input as testing.post("https://example.com/", {})
}

test_models if {
	models.deny == {"gemini-1.0-ultra is not one of this policy's models"} with input as gemini("gemini-1.0-ultra")
	given := testing.post("https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", {})
	models.deny == {"the model must be in the path"} with input as given
}

# What comes of it all under sallyport.yaml.
test_decisions if {
	every decision in testing.decisions([gemini("gemini-2.5-flash")]) {
		decision.action == "allow"
		decision.rule == "gemini"
	}
	every decision in testing.decisions([gemini("x"), testing.get("https://api.mistral.ai/v1/models")]) {
		decision.action == "deny"
	}
}
